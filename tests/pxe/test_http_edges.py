"""HTTP as firmware and iPXE speak it, byte by byte, against the running service."""

import hashlib
from pathlib import Path

import pytest


class Connection:
    """One TCP connection; answers are read by their Content-Length, so that what follows is the next answer's."""

    def __init__(self, sock) -> None:
        self.sock = sock
        self.rest = b""

    def send(self, method: str, path: str, *headers: str, body: bytes = b"") -> None:
        lines = [f"{method} {path} HTTP/1.1", "Host: 10.21.1.1:7023", *headers, "", ""]
        self.sock.sendall("\r\n".join(lines).encode() + body)

    def receive(self, *, head: bool = False) -> tuple[int, dict[str, str], bytes]:
        while b"\r\n\r\n" not in self.rest:
            self.rest += self._more()
        top, _, self.rest = self.rest.partition(b"\r\n\r\n")
        status, *fields = top.decode().split("\r\n")
        headers = {name.lower(): value for name, value in (field.split(": ", 1) for field in fields)}
        length = 0 if head else int(headers["content-length"])
        while len(self.rest) < length:
            self.rest += self._more()
        body, self.rest = self.rest[:length], self.rest[length:]
        return int(status.split()[1]), headers, body

    def ask(self, method: str, path: str, *headers: str, body: bytes = b""):
        self.send(method, path, *headers, body=body)
        return self.receive(head=method == "HEAD")

    def _more(self) -> bytes:
        data = self.sock.recv(1 << 20)
        assert data, "the server closed the connection"
        return data


@pytest.fixture
def http(network, service):
    with network.tcp_socket(1) as sock:
        yield Connection(sock)


@pytest.fixture
def duck(service):
    return f"/duck/{service.mac(1, 1)}"


@pytest.fixture
def kernel(image) -> bytes:
    store, made = image
    return store.path(made, made.kernel).read_bytes()


def test_head_then_get_on_one_connection(http, duck, kernel):
    status, headers, _ = http.ask("HEAD", f"{duck}/vmlinuz")
    assert (status, headers["content-length"]) == (200, str(len(kernel)))
    status, headers, body = http.ask("GET", f"{duck}/vmlinuz")
    assert (status, body) == (200, kernel)
    assert "transfer-encoding" not in headers
    status, _, script = http.ask("GET", f"{duck}/boot.ipxe")
    assert status == 200
    assert script.startswith(b"#!ipxe\n")
    status, headers, _ = http.ask("HEAD", f"{duck}/boot.ipxe")
    assert headers["content-length"] == str(len(script))


@pytest.mark.parametrize("path", ["//duck/{mac}/vmlinuz", "/duck//{mac}///vmlinuz", "/duck/{quoted}/vmlinuz"])
def test_paths_as_firmware_joins_them(http, service, kernel, path):
    mac = service.mac(1, 1)
    status, _, body = http.ask("GET", path.format(mac=mac, quoted=mac.replace(":", "%3A")))
    assert (status, len(body)) == (200, len(kernel))


@pytest.mark.parametrize("notation", ["{}", "{upper}", "{hyphens}", "{bare}"])
def test_a_mac_in_any_notation(http, service, notation):
    mac = service.mac(1, 1)
    shown = notation.format(mac, upper=mac.upper(), hyphens=mac.replace(":", "-"), bare=mac.replace(":", ""))
    status, _, script = http.ask("GET", f"/duck/{shown}/boot.ipxe")
    assert status == 200
    assert f"duckfleet.mac={mac} ".encode() in script


def test_ranges(http, duck, kernel):
    total = len(kernel)
    status, headers, body = http.ask("GET", f"{duck}/vmlinuz", "Range: bytes=100-199")
    assert (status, headers["content-range"], body) == (206, f"bytes 100-199/{total}", kernel[100:200])
    status, _, body = http.ask("GET", f"{duck}/vmlinuz", f"Range: bytes={total - 10}-")
    assert (status, body) == (206, kernel[-10:])
    status, _, body = http.ask("GET", f"{duck}/vmlinuz", "Range: bytes=-7")
    assert (status, body) == (206, kernel[-7:])
    status, headers, _ = http.ask("GET", f"{duck}/vmlinuz", f"Range: bytes={total}-")
    assert (status, headers["content-range"]) == (416, f"bytes */{total}")
    status, _, body = http.ask("GET", f"{duck}/vmlinuz", "Range: bytes=0-1,5-6")
    assert (status, len(body)) == (200, total)


def test_requests_sent_ahead_are_answered_in_order(http, duck, kernel):
    for first in (0, 10, 20):
        http.send("GET", f"{duck}/vmlinuz", f"Range: bytes={first}-{first + 9}")
    assert [http.receive()[2] for _ in range(3)] == [kernel[0:10], kernel[10:20], kernel[20:30]]


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/duck",
        "/duck/{mac}",
        "/duck/{mac}/",
        "/duck/{mac}/nothing",
        "/duck/{mac}/manifest.json",
        "/duck/{mac}/../../etc/passwd",
        "/duck/{mac}/%2e%2e%2fcurrent",
        "/duck/not-a-mac/boot.ipxe",
        "/duck/ff:ff:ff:ff:ff:ff/boot.ipxe",
        "/duck/02:dc:ff:ff:ff:ff/vmlinuz",
        "/loader/ipxe.iso",
        "/loader/..%2f..%2fetc%2fpasswd",
        "/loader",
        "/duck/{mac}/layer/python",
        "/duck/{mac}/vmlinuz%00",
    ],
)
def test_anything_else_is_not_found_and_never_a_redirect(http, service, path):
    status, headers, _ = http.ask("GET", path.format(mac=service.mac(1, 1)))
    assert status == 404
    assert "location" not in headers


def test_the_loader_for_firmware_that_boots_by_http(http):
    status, _, body = http.ask("GET", "/loader/snponly.efi")
    assert (status, body) == (200, Path("/usr/lib/ipxe/snponly.efi").read_bytes())


@pytest.mark.parametrize("method", ["PUT", "DELETE", "POST", "OPTIONS"])
def test_only_get_and_head(http, duck, method):
    status, headers, _ = http.ask(method, f"{duck}/vmlinuz", "Content-Length: 0")
    assert (status, headers["allow"]) == (405, "GET, HEAD")


def test_a_get_changes_nothing(http, service, duck):
    def fingerprint() -> dict[str, str]:
        files = [path for path in service.state.rglob("*") if path.is_file() and "fleet.db" not in path.name]
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.name != "serve.log"}

    before = fingerprint()
    for path in ("boot.ipxe", "vmlinuz", "base.img", "nothing", "report"):
        http.ask("GET", f"{duck}/{path}")
    assert fingerprint() == before


def test_an_unknown_machine_is_told_so_on_its_screen(http):
    status, _, script = http.ask("GET", "/duck/02:dc:ff:ff:ff:ff/boot.ipxe")
    assert status == 200
    assert b"02:dc:ff:ff:ff:ff, is not in the site file" in script
    assert b"kernel" not in script


def test_a_report_is_taken_and_kept(http, service, duck):
    before = max((event.id for event in service.events()), default=0)
    body = b"stage=up\nrtc_date=2000-01-01\nBAD KEY=x\nno separator\n"
    status, _, _ = http.ask("POST", f"{duck}/report", f"Content-Length: {len(body)}", body=body)
    assert status == 200
    event = service.wait_for_event(service.mac(1, 1), "reported", before)
    assert (event.evidence["stage"], event.evidence["rtc_date"]) == ("up", "2000-01-01")
    assert "BAD KEY" not in event.evidence


def test_a_report_without_end_is_refused(http, service, duck):
    body = b"x" * 20_000
    status, _, _ = http.ask("POST", f"{duck}/report", f"Content-Length: {len(body)}", body=body)
    assert status == 413


def test_a_stray_client_harms_nothing(network, service):
    for rubbish in (b"\x00" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01" + bytes(200)):
        with network.tcp_socket(1) as sock:
            sock.sendall(rubbish)
    with network.tcp_socket(1) as sock:
        assert Connection(sock).ask("GET", "/loader/snponly.efi")[0] == 200


def test_a_transfer_that_breaks_off_is_said_to_have(network, service, duck):
    before = max((event.id for event in service.events()), default=0)
    sock = network.tcp_socket(1)
    Connection(sock).send("GET", f"{duck}/vmlinuz")
    sock.recv(1000)
    sock.close()
    event = service.wait_for_event(service.mac(1, 1), "file_aborted", before)
    assert event.evidence["file"] == "vmlinuz"
