"""Outside evidence from real commands, a real HTTP server, and a switch that speaks SNMP; and what people say."""

from __future__ import annotations

import http.server
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckfleet.fleet.cli import run
from duckfleet.fleet.evidence import snmp
from duckfleet.fleet.evidence.gather import QUESTIONS, answers_of, outside_of
from duckfleet.fleet.evidence.sources import EvidenceError, look_at
from duckfleet.inventory.site import EvidenceSource, Site
from duckfleet.inventory.sitefile import SiteFileError, parse_site
from duckfleet.inventory.store import Store

SITE = """
[[domains]]
name = "1"
interface = "lo"
host_address = "10.21.1.1"
nodes = "10.21.1.[101-102]"

[[ducks]]
mac = "02:00:00:00:00:01"
address = "10.21.1.101"
name = "ann"
outlet = "p7"
switch_port = "3"

[[ducks]]
mac = "02:00:00:00:00:02"
address = "10.21.1.102"
name = "bob"
"""


def site(*evidence: str) -> Site:
    return parse_site(SITE + "\n".join(evidence), Path("duckfleet.toml"))


def look(driver: str, target: str, duck: int = 0, **more: object) -> dict:
    made = site()
    source = EvidenceSource("it", driver, target, **{"timeout_s": 2.0, **more})  # type: ignore[arg-type]
    return dict(look_at(source, made.ducks[duck], made.domains[0]))


# -- a command --------------------------------------------------------------------------------------------------------


def test_a_command_prints_the_object() -> None:
    said = look("command", """printf '{{"plug": {{"watts": 7.5}}, "for": "%s"}}' {name}""")
    assert said == {"plug": {"watts": 7.5}, "for": "ann"}


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("no-such-program-here {name}", "no-such-program-here"),
        ("false {name}", "ended with 1"),
        ("echo no json for {name}", "no JSON object"),
        ("echo [1] {name}", "no JSON object"),
        ("sh -c 'sleep 60' {name}", "did not end"),
    ],
)
def test_a_command_that_fails_is_unknown_and_says_why(command: str, why: str) -> None:
    with pytest.raises(EvidenceError, match=why) as caught:
        look("command", command, duck=1, timeout_s=0.3 if "sleep" in command else 5.0)
    assert "bob" in str(caught.value) and "[evidence.it]" in str(caught.value)


# -- a smart plug -----------------------------------------------------------------------------------------------------


@contextmanager
def plug(answer: bytes, status: int = 200) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/{{outlet}}"
        server.shutdown()


def test_watts_and_relay_of_a_plug() -> None:
    with plug(b'{"StatusSNS": {"ENERGY": {"Power": 8.5}}, "output": true}') as url:
        said = look("http", url, watts="StatusSNS.ENERGY.Power", relay="output")["plug"]
    assert (said["watts"], said["relay"]) == (8.5, "on") and said["at"]


@pytest.mark.parametrize(("answer", "status"), [(b"{}", 200), (b"<html>", 200), (b'{"watts": 3}', 500), (b"", 204)])
def test_a_plug_that_says_nothing_usable(answer: bytes, status: int) -> None:
    with plug(answer, status) as url, pytest.raises(EvidenceError):
        look("http", url, watts="watts")


def test_a_plug_that_is_not_there() -> None:
    with pytest.raises(EvidenceError, match="ann"):
        look("http", "http://127.0.0.1:9/{name}", watts="watts")


# -- a switch ---------------------------------------------------------------------------------------------------------


def length(body: bytes) -> bytes:
    """BER length (X.690, 8.1.3); an independent encoder, by hand."""
    return bytes([len(body)]) if len(body) < 128 else bytes([0x82]) + len(body).to_bytes(2, "big")


def ber(tag: int, body: bytes) -> bytes:
    return bytes([tag]) + length(body) + body


def integer(value: int, tag: int = 0x02) -> bytes:
    return ber(tag, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def oid(text: str) -> bytes:
    first, second, *rest = map(int, text.split("."))
    body = bytes([40 * first + second])
    for arc in rest:
        digits = [arc & 127]
        while arc := arc >> 7:
            digits.append(arc & 127 | 128)
        body += bytes(digits[::-1])
    return ber(0x06, body)


def response(request_id: int, values: dict[str, bytes], error: int = 0) -> bytes:
    variables = b"".join(ber(0x30, oid(name) + value) for name, value in values.items())
    pdu = integer(request_id) + integer(error) + integer(0) + ber(0x30, variables)
    return ber(0x30, integer(1) + ber(0x04, b"public") + ber(0xA2, pdu))


def port_values(index: int, **changes: bytes) -> dict[str, bytes]:
    good = {
        "mtu": integer(9000),
        "admin": integer(1),
        "oper": integer(1),
        "last_change": integer(60_000, 0x43),
        "in_errors": integer(0, 0x41),
        "out_discards": integer(7, 0x41),
        "high_speed": integer(2500, 0x42),
        "name": ber(0x04, b"1/0/3"),
        **changes,
    }
    values = {f"{snmp.COLUMNS[name]}.{index}": value for name, value in good.items()}
    return {snmp.SYS_UPTIME: integer(90_000, 0x43), **values}


@contextmanager
def switch(answer: object) -> Iterator[str]:
    """Answers each request by `answer(request id)`; None: silence. The id is found in the request by its place."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(0.05)
        stop = threading.Event()

        def serve() -> None:
            while not stop.is_set():
                try:
                    request, client = server.recvfrom(65536)
                except TimeoutError:
                    continue
                at = request.index(b"public") + len(b"public")
                pdu = request[at:]
                body = pdu[2:] if pdu[1] < 128 else pdu[2 + (pdu[1] & 127) :]
                request_id = int.from_bytes(body[2 : 2 + body[1]], "big")
                for datagram in answer(request_id) or ():  # type: ignore[operator]
                    server.sendto(datagram, client)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            stop.set()
            thread.join(10)


def test_a_port_by_snmp() -> None:
    before_s = time.time()
    with switch(lambda number: [response(number, port_values(3))]) as host:
        said = look("snmp", host)["switch"]
    after_s = time.time()
    since_s = datetime.fromisoformat(said.pop("since")).timestamp()
    assert said == {
        "port": "1/0/3", "port_up": True, "admin_up": True, "speed_mbps": 2500, "mtu": 9000, "in_errors": 0,
        "out_discards": 7,
    }  # fmt: skip
    went_up_s_ago = (90000 - 60000) / 100  # the switch's uptime less that at the change, in hundredths
    assert int(before_s) - went_up_s_ago <= since_s <= after_s - went_up_s_ago


def test_a_port_that_is_down() -> None:
    with switch(lambda number: [response(number, port_values(3, oper=integer(2), admin=integer(2)))]) as host:
        said = look("snmp", host)["switch"]
    assert (said["port_up"], said["admin_up"]) == (False, False) and "speed_mbps" not in said


def test_answers_that_are_none_are_waited_past() -> None:
    def answer(number: int) -> list[bytes]:
        return [b"", b"\x30", b"HTTP/1.1 400\r\n", response(number + 1, {}), response(number, port_values(3))]

    with switch(answer) as host:
        assert look("snmp", host)["switch"]["port_up"]


def test_silence_an_unknown_port_and_a_name_that_is_no_index() -> None:
    with switch(lambda _number: None) as host, pytest.raises(EvidenceError, match="does not answer SNMP"):
        look("snmp", host)
    missing = {f"{snmp.COLUMNS['oper']}.3": ber(0x81, b"")}  # noSuchInstance
    with (
        switch(lambda number: [response(number, missing)]) as host,
        pytest.raises(EvidenceError, match="no interface 3"),
    ):
        look("snmp", host)
    with pytest.raises(EvidenceError, match="no interface index"):
        look("snmp", "127.0.0.1", duck=1)


@given(st.binary(max_size=300))
def test_no_datagram_breaks_the_reader(datagram: bytes) -> None:
    assert snmp.decode_response(datagram, 1) is None or isinstance(snmp.decode_response(datagram, 1), dict)


# -- together ---------------------------------------------------------------------------------------------------------


def test_what_sources_and_people_say_is_put_together(tmp_path: Path) -> None:
    with plug(b'{"watts": 1.0}') as url:
        made = site(
            f'[evidence.plug]\ndriver = "http"\ntarget = "{url}"\nwatts = "watts"',
            '[evidence.broken]\ndriver = "command"\ntarget = "false {name}"',
        )
        store = Store(f"sqlite:///{tmp_path / 'fleet.db'}")
        store.know(made.ducks)
        store.log("told", {"asked": "cable", "answer": "loose"}, made.ducks[0])
        events = {duck.mac: store.events([duck.mac]) for duck in made.ducks}
        found = outside_of(made, made.ducks, events)
    first = found[made.ducks[0].mac].value
    assert first is not None and first.plug is not None
    assert first.plug.watts == 1.0 and first.person == {"cable": "loose"}


def test_sources_that_all_failed_are_unknown_and_none_is_absent() -> None:
    broken = site('[evidence.broken]\ndriver = "command"\ntarget = "false {name}"')
    found = outside_of(broken, broken.ducks, {})
    assert all(one.value is None and "ended with 1" in one.unknown for one in found.values())
    assert all(not one.was_tried for one in outside_of(site(), site().ducks, {}).values())


def test_an_answer_counts_until_the_duck_is_well(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'fleet.db'}")
    duck = site().ducks[0]
    store.know([duck])
    store.log("told", {"asked": "fan", "answer": "still"}, duck)
    assert len(answers_of(store.events([duck.mac]))) == 1
    store.log("probe_passed", {}, duck)
    assert answers_of(store.events([duck.mac])) == []


@pytest.mark.parametrize(
    "text",
    [
        '[evidence.x]\ndriver = "telepathy"\ntarget = "{name}"',
        '[evidence.x]\ndriver = "command"\ntarget = "poweroff {name}"',
        '[evidence.x]\ndriver = "command"\ntarget = "snmpget switch"',
        '[evidence.x]\ndriver = "http"\ntarget = "http://{colour}"',
        '[evidence.x]\ndriver = "snmp"',
        '[evidence.x]\ndriver = "snmp"\ntarget = "switch"\nwat = 1',
    ],
)
def test_sources_that_cannot_be_are_refused_with_their_line(text: str) -> None:
    with pytest.raises(SiteFileError, match=r"duckfleet.toml:\d+: evidence"):
        site(text)


def test_notes_and_answers_are_kept_word_for_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "duckfleet.toml"
    path.write_text(SITE)
    options = ["--state", str(tmp_path / "state"), "--site", str(path)]
    assert run([*options, "note", "ann", "battery replaced"]) == 0
    assert run([*options, "note", "ann", "cable=loose"]) == 0
    assert run([*options, "note", "ann", "cable=purple"]) == 2
    assert "seated|loose" in capsys.readouterr().err
    store = Store(f"sqlite:///{tmp_path / 'state' / 'fleet.db'}")
    said = [(event.kind, dict(event.evidence)) for event in store.events()]
    assert said == [("note", {"text": "battery replaced"}), ("told", {"asked": "cable", "answer": "loose"})]


def test_every_question_is_one_that_the_tables_ask() -> None:
    tables = Path(__file__).parents[3] / "fleet" / "diagnosis" / "tables"
    text = "".join(path.read_text() for path in tables.glob("*.py"))
    assert all(f'"{question}"' in text for question in QUESTIONS)
    assert json.dumps({name: list(answers) for name, answers in QUESTIONS.items()})
