"""Real ducks behind a network that loses, repeats and reorders datagrams in both directions: right all the same."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from duckfleet.inventory.roster import RosterDomain
from duckfleet.runtime.fabric import LocalFabric, UdpFabric
from tests.runtime.fabric import lossy_net
from tests.runtime.fabric.cut_model import MOE, CutModel
from tests.runtime.fabric.duck_processes import DuckFlock
from tests.runtime.fabric.lossy_net import LossyNet

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/net/tun").exists(), reason="network namespaces and TAP devices need root"
)


class LossyFlock(DuckFlock):
    """Ducks in the namespace behind the relay."""

    def __init__(self, directory: Path, net: LossyNet, *, auth: bool) -> None:
        super().__init__(directory, [len(net.duck_addresses)], auth=auth)
        self.domains = [RosterDomain("d1", lossy_net.HOST_ADDRESS, lossy_net.BROADCAST, 1500)]
        for duck, address in zip(self.ducks, net.duck_addresses, strict=True):
            duck.address = address
            duck.broadcast = lossy_net.BROADCAST
            duck.prefix = ("ip", "netns", "exec", net.ducks)


@pytest.mark.parametrize("auth", [True, False], ids=["auth", "no-auth"])
def test_lost_repeated_and_reordered_datagrams(tmp_path: Path, auth: bool) -> None:
    model = CutModel(MOE, 2)
    local = LocalFabric(model.plan, model.chunk_bytes)
    with LossyNet(2, loss=0.12, repeat=0.05, reorder=0.1) as net, LossyFlock(tmp_path, net, auth=auth) as flock:

        def run() -> dict:
            roster = flock.roster()
            flock.place(roster, model.plan, model.chunks)
            udp = UdpFabric(roster, model.plan, flock.keys, deadline_s=30.0, auth=auth, control_timeout_s=20.0)
            for num_tokens in (1, 2, 40, 150):
                for layer in range(2):
                    for lane in range(2):
                        x, experts, weights = model.inputs(layer, num_tokens, seed=lane)
                        got, expected = np.empty_like(x), np.empty_like(x)
                        udp.wait(udp.submit(layer, x, experts, weights, lane), got)
                        local.wait(local.submit(layer, x, experts, weights), expected)
                        assert np.array_equal(got, expected)
            stats = udp.stats()
            udp.close()
            return stats

        stats = lossy_net.inside(net.host, run)
    assert stats["retransmissions"] > 0
    assert sum(duck["resends"] for duck in stats["ducks"]) > 0, "no duck asked for a part of a request"
    assert sum(duck["probes"] for duck in stats["ducks"]) > 0, "no duck was asked for a part of its reply"
    assert stats["drops"]["replayed" if auth else "duplicate_fragment"] > 0
    assert stats["drops"]["bad_tag"] == 0
