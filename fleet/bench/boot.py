"""`duckctl bench boot`: how long the boot service takes for clients that boot at once. Needs root.

The clients are simulated packet by packet in a network namespace of the bench's own: DHCP as iPXE does it, then the
script, the kernel and the layers by HTTP. Beside the figure stands a bare TCP server that sends the same bytes to as
many clients over the same wire in the same run.
"""

from __future__ import annotations

import os
import secrets
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from duckfleet.fleet.vm import network
from duckfleet.inventory.errors import MachineError, OperatorError
from duckfleet.inventory.site import Domain, Duck
from duckfleet.inventory.sitewriter import site_text
from duckfleet.pxe.image.images import Image, ImageStore, image_file

FILES = {"vmlinuz": 8_250_000, "base.img": 4_620_000, "duckd.img": 1_280_000, "site.img": 400}
HOST, PORT, PLAIN_PORT = "10.21.1.1", 7023, 7024
CLIENT_WIRE = "10.21.1.240"
TIMEOUT_S = 30.0
RECV_BYTES = 1 << 20


def rows(clients: int = 8, rounds: int = 5) -> Iterator[Mapping[str, Any]]:
    """Clients at once, and how many times all of them boot."""
    if os.geteuid() != 0:
        raise OperatorError("bench boot needs root: it makes network namespaces")
    if not 1 <= clients <= 32:
        raise OperatorError(f"--clients {clients}: 1 to 32")
    with ExitStack() as stack:
        wire = stack.enter_context(_Wire())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="duckfleet-bench-")))
        site = _site(clients)
        stack.enter_context(_Server(wire, folder, site))
        macs = [duck.mac for duck in site[1]]
        _boot_all(wire, macs)  # warm: page cache, first imports
        alone = [_boot_all(wire, macs[:1])[0] for _ in range(rounds)]
        together = [took for _ in range(rounds) for took in _boot_all(wire, macs)]
        stack.enter_context(_PlainServer(wire))
        plain = [took for _ in range(rounds) for took in _at_once([lambda: _fetch_plain(wire)] * clients)]
    seconds = "s, lower is better"
    base, against = statistics.median(plain), f"a bare TCP server to {clients} clients"
    yield {"name": "one client, p50", "value": statistics.median(alone), "unit": seconds}
    yield {
        "name": f"{clients} clients at once, p50",
        "value": statistics.median(together),
        "unit": seconds,
        "ratio": statistics.median(together) / base,
        "against": against,
    }
    yield {
        "name": f"{clients} clients at once, p99",
        "value": _quantile(together, 0.99),
        "unit": seconds,
        "ratio": _quantile(together, 0.99) / _quantile(plain, 0.99),
        "against": against,
    }
    yield {"name": "bytes a client", "value": float(sum(FILES.values())), "unit": "B"}


def _quantile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def _site(num_clients: int) -> tuple[Domain, tuple[Duck, ...]]:
    addresses = tuple(f"10.21.1.{101 + i}" for i in range(num_clients))
    domain = Domain("d1", "d1", HOST, 24, addresses, "10.21.1.255", 1500, 9, 7021, 7022)
    ducks = tuple(
        Duck(f"02:dc:be:00:00:{i:02x}", f"duck{101 + i}", address, "d1") for i, address in enumerate(addresses)
    )
    return domain, ducks


class _Wire:
    """Two namespaces and a pair of interfaces between them."""

    def __init__(self) -> None:
        mark = secrets.token_hex(3)
        self.host, self.clients = f"dfbench-{mark}h", f"dfbench-{mark}c"

    def __enter__(self) -> _Wire:
        for namespace in (self.host, self.clients):
            _run("ip", "netns", "add", namespace)
            _run("ip", "-n", namespace, "link", "set", "lo", "up")
        _run("ip", "-n", self.host, "link", "add", "d1", "type", "veth", "peer", "name", "c1", "netns", self.clients)
        for namespace, name, address in ((self.host, "d1", HOST), (self.clients, "c1", CLIENT_WIRE)):
            _run("ip", "-n", namespace, "address", "add", f"{address}/24", "broadcast", "+", "dev", name)
            _run("ip", "-n", namespace, "link", "set", name, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for namespace in (self.host, self.clients):
            network.destroy(namespace)


class _Server:
    """`duckctl pxe serve` with an image of the usual sizes."""

    def __init__(self, wire: _Wire, folder: Path, site: tuple[Domain, tuple[Duck, ...]]) -> None:
        contents = {name: os.urandom(size) for name, size in FILES.items()}
        kernel, *layers = (image_file(name, data) for name, data in contents.items())
        store = ImageStore(folder / "images")
        store.save(Image("bench", "bench", kernel, tuple(layers), (), (), ""), contents)
        store.set_current("bench")
        (folder / "site.toml").write_text(site_text("bench", [site[0]], site[1]))
        duckctl = [
            sys.executable,
            "-m",
            "duckfleet.fleet.cli",
            "--state",
            str(folder),
            "--site",
            str(folder / "site.toml"),
        ]
        self._command = network.inside(wire.host, [*duckctl, "pxe", "serve", "--quiet"])

    def __enter__(self) -> _Server:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        if not self._process.stdout.readline().startswith("serving"):
            self._process.wait(TIMEOUT_S)
            raise MachineError("the boot service did not start; it has said why")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(TIMEOUT_S)


class _PlainServer:
    """Sends the same number of bytes to whoever connects: what this machine's network and copying allow."""

    _PROGRAM = """
import socket, sys, threading
data = bytes(int(sys.argv[3]))
with socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=64) as server:
    print("ready", flush=True)
    def send(peer):
        with peer:
            peer.sendall(data)
    while True:
        threading.Thread(target=send, args=(server.accept()[0],), daemon=True).start()
"""

    def __init__(self, wire: _Wire) -> None:
        words = [sys.executable, "-c", self._PROGRAM, HOST, str(PLAIN_PORT), str(sum(FILES.values()))]
        self._command = network.inside(wire.host, words)

    def __enter__(self) -> _PlainServer:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._process.stdout.readline()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(TIMEOUT_S)


def _boot_all(wire: _Wire, macs: Sequence[str]) -> list[float]:
    return _at_once([lambda mac=mac: _boot(wire, mac) for mac in macs])  # type: ignore[misc]


def _at_once(work: Sequence[Callable[[], None]]) -> list[float]:
    """Start all at one moment; how long each took."""
    barrier = threading.Barrier(len(work))

    def timed(task: Callable[[], None]) -> float:
        barrier.wait()
        began = time.perf_counter()
        task()
        return time.perf_counter() - began

    with ThreadPoolExecutor(len(work)) as pool:
        return list(pool.map(timed, work))


def _boot(wire: _Wire, mac: str) -> None:
    with network.entered(wire.clients):
        _lease(mac)
        with socket.create_connection((HOST, PORT), TIMEOUT_S) as connection:
            for name in ("boot.ipxe", *FILES):
                _get(connection, f"/duck/{mac}/{name}")


def _lease(mac: str) -> None:
    """DISCOVER, OFFER, REQUEST, ACK on the wire, as iPXE."""
    octets = bytes.fromhex(mac.replace(":", ""))
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800)) as raw:
        raw.bind(("c1", 0))
        raw.settimeout(TIMEOUT_S)
        transaction = secrets.token_bytes(4)
        raw.send(_dhcp(octets, transaction, b"\x35\x01\x01"))
        offered = _answer(raw, transaction)
        wanted = b"\x35\x01\x03" + b"\x32\x04" + offered + b"\x36\x04" + socket.inet_aton(HOST)
        raw.send(_dhcp(octets, transaction, wanted))
        _answer(raw, transaction)


def _dhcp(mac: bytes, transaction: bytes, options: bytes) -> bytes:
    """An Ethernet frame with a broadcast DHCP message (RFC 2131, figure 1)."""
    classes = b"\x4d\x04iPXE" + b"\x5d\x02\x00\x00" + b"\x3c\x20PXEClient:Arch:00000:UNDI:002001"
    fixed = b"\x01\x01\x06\x00" + transaction + b"\x00\x00\x80\x00" + bytes(16) + mac + bytes(10 + 64 + 128)
    message = fixed + b"\x63\x82\x53\x63" + options + classes + b"\xff"
    udp = struct.pack("!HHHH", 68, 67, 8 + len(message), 0) + message
    header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, bytes(4), b"\xff" * 4)
    total = sum(struct.unpack("!10H", header))
    checksum = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    header = header[:10] + struct.pack("!H", checksum) + header[12:]
    return b"\xff" * 6 + mac + b"\x08\x00" + header + udp


def _answer(raw: socket.socket, transaction: bytes) -> bytes:
    """`yiaddr` of the server's next message to this transaction."""
    while True:
        frame = raw.recv(4096)
        message = frame[14 + 20 + 8 :]
        if frame[23:24] == b"\x11" and message[:1] == b"\x02" and message[4:8] == transaction:
            return message[16:20]


def _get(connection: socket.socket, path: str) -> None:
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {HOST}:{PORT}\r\n\r\n".encode())
    head = b""
    while b"\r\n\r\n" not in head:
        head += connection.recv(65536)
    top, _, body = head.partition(b"\r\n\r\n")
    if not top.startswith(b"HTTP/1.1 200"):
        raise MachineError(f"the boot service answered {top[:40]!r} to {path}")
    length = next(int(line.split(b":")[1]) for line in top.lower().split(b"\r\n") if line.startswith(b"content-length"))
    _receive(connection, length - len(body))


def _fetch_plain(wire: _Wire) -> None:
    with network.entered(wire.clients), socket.create_connection((HOST, PLAIN_PORT), TIMEOUT_S) as connection:
        _receive(connection, sum(FILES.values()))


def _receive(connection: socket.socket, num_bytes: int) -> None:
    buffer = bytearray(RECV_BYTES)
    while num_bytes > 0:
        got = connection.recv_into(buffer, min(num_bytes, RECV_BYTES))
        if got == 0:
            raise MachineError("the boot service closed the connection in the middle of a file")
        num_bytes -= got


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MachineError(f"{' '.join(words)} failed: {done.stderr.strip()}")
