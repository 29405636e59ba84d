"""Node sets: what they expand to, and what is refused before it takes memory."""

import pytest

from duckfleet.inventory.nodeset import BadNodeSet, expand, expand_addresses, fold


def test_a_range_of_addresses_expands_in_numeric_order() -> None:
    assert expand_addresses("10.21.1.[9-11]") == ("10.21.1.9", "10.21.1.10", "10.21.1.11")


def test_a_union_keeps_each_node_once() -> None:
    assert expand_addresses("10.21.1.[1-2],10.21.1.2") == ("10.21.1.1", "10.21.1.2")


BAD = ["", "10.21.1.[8-1]", "10.21.1.[1-", "10.21.1.[1-300]", "duck[1-4]", "10.21.1.[0-99999999]"]


@pytest.mark.parametrize("text", BAD)
def test_sets_that_are_no_addresses_are_refused_by_their_text(text: str) -> None:
    with pytest.raises(BadNodeSet):
        expand_addresses(text)


def test_a_huge_set_is_refused_by_its_count() -> None:
    with pytest.raises(BadNodeSet, match="at most 1024"):
        expand("n[1-999999999999]")


def test_the_bound_is_of_each_pattern_and_not_of_their_product() -> None:
    assert len(expand("a[1-40,50],b[1-40]")) == 81


def test_no_group_of_another_configuration_is_looked_up() -> None:
    with pytest.raises(BadNodeSet, match="not an IPv4 address"):
        expand_addresses("@all")


def test_folding_undoes_expanding() -> None:
    assert fold(expand("10.21.1.[101-108]")) == "10.21.1.[101-108]"
    assert fold([]) == ""
