"""What a lab looks like: addresses of the design, MACs of its own, ports that do not clash."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckfleet.fleet.lab.plan import plan_lab, with_port
from duckfleet.inventory.errors import OperatorError
from duckfleet.inventory.sitefile import parse_site
from duckfleet.inventory.sitewriter import site_text


def test_four_ducks_are_at_the_addresses_of_the_design() -> None:
    plan = plan_lab("abcd", 4)
    assert [duck.address for duck in plan.ducks] == [f"127.21.1.{n}" for n in range(101, 105)]
    assert plan.ducks[0].mac == "02:dc:ab:cd:01:65"


def test_thirty_two_ducks_fill_four_domains() -> None:
    plan = plan_lab("abcd", 32)
    assert [duck.address for duck in plan.ducks] == [f"127.21.{d}.{n}" for d in range(1, 5) for n in range(101, 109)]
    assert len({domain.data_port for domain in plan.domains}) == 4


@given(st.integers(1, 32), st.integers(1, 4))
def test_every_lab_is_a_site_that_the_reader_takes(num_ducks: int, num_domains: int) -> None:
    if not -(-num_ducks // 8) <= num_domains <= num_ducks:
        return
    plan = with_port(plan_lab("0123", num_ducks, num_domains=num_domains), 47_480)
    site = parse_site(site_text("lab", plan.domains, plan.ducks), Path("lab.toml"))
    assert site.domains == plan.domains
    assert site.ducks == plan.ducks
    sizes = [sum(duck.domain == domain.name for duck in site.ducks) for domain in site.domains]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("ducks", "domains"), [(0, None), (33, None), (9, 1), (2, 3), (8, 5)])
def test_a_fleet_that_does_not_fit_is_refused(ducks: int, domains: int | None) -> None:
    with pytest.raises(OperatorError, match="--d"):
        plan_lab("abcd", ducks, num_domains=domains)
