"""Power by a command and by an HTTP call: what is really run and called, and how failures are told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from duckfleet.fleet.errors import PowerError, PowerUnsupported
from duckfleet.fleet.power.drivers import driver_for
from duckfleet.fleet.power.person import PersonPower
from duckfleet.inventory.site import Domain, Duck, PowerSource

DOMAIN = Domain("d1", "lo", "127.21.1.1", 24, (), "127.255.255.255", 1500, 9, 1, 2)
ANN = Duck("00:e0:4c:00:00:01", "ann", "10.21.1.101", "d1", rack="r1u3", outlet="7")


def test_a_command_is_run_with_the_ducks_values_as_single_words(tmp_path: Path) -> None:
    out = tmp_path / "out"
    source = PowerSource("pdu", "command", on=f"cp /proc/self/cmdline {out} {{outlet}}")
    odd = Duck(ANN.mac, "ann", ANN.address, "d1", outlet="; touch /tmp/never $(id)")
    with pytest.raises(PowerError, match="ended with 1"):
        driver_for(source).on(odd, DOMAIN)
    echo = PowerSource("pdu", "command", on="echo {outlet} {mac} {address}")
    evidence = driver_for(echo).on(odd, DOMAIN)
    assert evidence["output"] == "; touch /tmp/never $(id) 00:e0:4c:00:00:01 10.21.1.101"
    assert not Path("/tmp/never").exists()


def test_a_command_that_fails_hangs_or_is_missing_is_told_with_its_duck() -> None:
    for line, says in (
        ("sh -c 'echo no outlet {outlet} >&2; exit 3'", "ann.*ended with 3: no outlet 7"),
        ("/nonexistent/pdu {outlet}", "ann.*cannot be run"),
    ):
        with pytest.raises(PowerError, match=says):
            driver_for(PowerSource("pdu", "command", on=line)).on(ANN, DOMAIN)
    with pytest.raises(PowerError, match="did not end in"):
        driver_for(PowerSource("pdu", "command", on="sleep 1{outlet}", timeout_s=0.2)).on(ANN, DOMAIN)


def test_an_action_that_a_source_lacks_is_unsupported() -> None:
    source = PowerSource("pdu", "command", on="echo {outlet}")
    for action in (driver_for(source).off, driver_for(source).cycle, driver_for(PowerSource("wol", "wol")).off):
        with pytest.raises(PowerUnsupported, match="duck ann"):
            action(ANN, DOMAIN)


class Plug(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.server.calls.append((self.command, self.path))  # type: ignore[attr-defined]
        status = {"/teapot": 418, "/away": 302}.get(self.path.partition("?")[0], 200)
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def plug() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Plug)
    server.calls = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_plug_is_called_with_the_ducks_values_quoted(plug: ThreadingHTTPServer) -> None:
    base = f"http://127.0.0.1:{plug.server_port}"
    odd = Duck(ANN.mac, "ann", ANN.address, "d1", outlet="a b/../c?d")
    source = PowerSource("plug", "http", on=base + "/relay/{outlet}?turn=on", cycle=base + "/cycle/{mac}", method="GET")
    assert driver_for(source).on(odd, DOMAIN)["status"] == 200
    assert driver_for(source).cycle(odd, DOMAIN)["answer"] == "ok"
    assert plug.calls == [  # type: ignore[attr-defined]
        ("GET", "/relay/a%20b%2F..%2Fc%3Fd?turn=on"),
        ("GET", "/cycle/00%3Ae0%3A4c%3A00%3A00%3A01"),
    ]


def test_any_answer_but_success_is_a_failure_and_no_redirect_is_followed(plug: ThreadingHTTPServer) -> None:
    base = f"http://127.0.0.1:{plug.server_port}"
    for path, says in (("/teapot?{outlet}", "418"), ("/away?{outlet}", "302")):
        with pytest.raises(PowerError, match=f"duck ann.*answered {says}"):
            driver_for(PowerSource("plug", "http", on=base + path)).on(ANN, DOMAIN)
    assert [path.partition("?")[0] for _, path in plug.calls] == ["/teapot", "/away"]  # type: ignore[attr-defined]
    with pytest.raises(PowerError, match="duck ann"):
        driver_for(PowerSource("plug", "http", on="http://127.0.0.1:1/{outlet}")).on(ANN, DOMAIN)


def test_a_person_is_told_where_to_walk_and_believed() -> None:
    asked: list[str] = []

    def ask(request: str) -> bool:
        asked.append(request)
        return True

    PersonPower(ask).cycle(ANN, DOMAIN)
    assert asked == ["switch off and on again duck ann (10.21.1.101, 00:e0:4c:00:00:01) at rack position r1u3"]
    with pytest.raises(PowerError, match="nobody did it"):
        PersonPower().on(ANN, DOMAIN)
