"""A real image built once a session, a network of namespaces with the real boot service in it, packet-level clients."""

import hashlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from duckfleet.inventory.store import Store
from duckfleet.pxe.image import build
from duckfleet.pxe.image.build import ImageInputs
from duckfleet.pxe.image.debs import DebCache, unpack
from duckfleet.pxe.image.images import ImageStore

STAND_IN = """
#include <stdio.h>
#include <unistd.h>
int main(void) { puts("ready"); fflush(stdout); for (;;) pause(); }
"""


@pytest.fixture(scope="session")
def stand_in_duckd(tmp_path_factory) -> Path:
    """A static program that says "ready" like duckd does."""
    folder = tmp_path_factory.mktemp("duckd")
    (folder / "main.c").write_text(STAND_IN)
    subprocess.run(["cc", "-O1", "-static", "-o", folder / "duckd", folder / "main.c"], check=True)
    return folder / "duckd"


@pytest.fixture(scope="session")
def image_inputs(tmp_path_factory, stand_in_duckd) -> ImageInputs:
    keys = tmp_path_factory.mktemp("keys")
    (keys / "fleet.pub").write_text("11" * 32 + "\n")
    (keys / "enrolment.secret").write_text("22" * 32 + "\n")
    return ImageInputs(stand_in_duckd, keys / "fleet.pub", keys / "enrolment.secret", ("ssh-ed25519 AAAA fleet",))


@pytest.fixture(scope="session")
def image(tmp_path_factory, image_inputs):
    """(store, image)"""
    store = ImageStore(tmp_path_factory.mktemp("images"))
    return store, build.build_image(image_inputs, store, build.default_cache())


@pytest.fixture(scope="session")
def kernel_tree():
    """The files of the kernel package that images use."""
    debs = DebCache(build.default_cache() / "debs")
    (package,) = debs.fetch([debs.kernel_package()])
    return unpack(package, lambda path: path.startswith(("boot/vmlinuz", "usr/lib/modules/")))


# -- a network of our own, with the boot service running in it ------------------------------------------------

NUM_DOMAINS = 4
DUCKS_PER_DOMAIN = 8
CLIENT_ADDRESS = "10.21.{domain}.240"  # for TFTP and HTTP; no duck's
HTTP_PORT = 7023


def mac_of(domain: int, number: int) -> str:
    return f"02:dc:00:00:{domain:02x}:{number:02x}"


class Network:
    """A namespace for the host, one for the clients; a veth pair a domain between them."""

    def __init__(self) -> None:
        self.id = secrets.token_hex(3)
        self.host, self.clients = f"dfhost-{self.id}", f"dfcl-{self.id}"
        for namespace in (self.host, self.clients):
            ip("netns", "add", namespace)
            ip("-n", namespace, "link", "set", "lo", "up")
        for domain in range(1, NUM_DOMAINS + 1):
            ip(
                "-n",
                self.host,
                "link",
                "add",
                f"d{domain}",
                "type",
                "veth",
                "peer",
                f"c{domain}",
                "netns",
                self.clients,
            )
            for namespace, name, address in (
                (self.host, f"d{domain}", f"10.21.{domain}.1/24"),
                (self.clients, f"c{domain}", CLIENT_ADDRESS.format(domain=domain) + "/24"),
            ):
                ip("-n", namespace, "address", "add", address, "dev", name)
                ip("-n", namespace, "link", "set", name, "up")

    def close(self) -> None:
        for namespace in (self.host, self.clients):
            subprocess.run(["ip", "netns", "delete", namespace], check=False, capture_output=True)

    def inside(self, namespace: str, work):
        """Run `work` in a thread that lives in a namespace; sockets it makes stay there."""
        from concurrent.futures import ThreadPoolExecutor

        from pyroute2 import netns

        def enter_and_work():
            netns.setns(namespace)
            return work()

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(enter_and_work).result()

    def raw_socket(self, interface: str) -> socket.socket:
        def make() -> socket.socket:
            raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
            raw.bind((interface, 0))
            return raw

        return self.inside(self.clients, make)

    def udp_socket(self, domain: int) -> socket.socket:
        def make() -> socket.socket:
            udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            udp.bind((CLIENT_ADDRESS.format(domain=domain), 0))
            return udp

        return self.inside(self.clients, make)

    def tcp_socket(self, domain: int, port: int = HTTP_PORT) -> socket.socket:
        return self.inside(self.clients, lambda: socket.create_connection((f"10.21.{domain}.1", port), 10))


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Service:
    """`duckctl pxe serve` in the host's namespace, with an image and a site of 32 ducks."""

    def __init__(self, network: Network, state: Path, image_store: ImageStore, *options: str) -> None:
        self.network = network
        self.state = state
        shutil.copytree(image_store.directory, state / "images")
        self.site_path = state / "duckfleet.toml"
        self.site_path.write_text(site_toml())
        self.store = Store(f"sqlite:///{state / 'fleet.db'}")
        duckctl = [sys.executable, "-m", "duckfleet.fleet.cli", "--state", str(state), "--site", str(self.site_path)]
        command = ["ip", "netns", "exec", network.host, *duckctl, "pxe", "serve", *options]
        self.log = (state / "serve.log").open("w+")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("serving"):
            self.process.wait(10)
            self.log.seek(0)
            raise AssertionError(f"duckctl pxe serve did not start: {line}{self.log.read()}")
        self.drain = threading.Thread(target=self.process.stdout.read, daemon=True)
        self.drain.start()

    mac = staticmethod(mac_of)

    @property
    def tftp_dir(self) -> Path:
        (folder,) = Path("/run/duckfleet").glob(f"pxe-{hashlib.sha256(str(self.state).encode()).hexdigest()[:8]}/tftp")
        return folder

    def events(self, mac: str = "", after_id: int = 0):
        """Lines of the log about one machine, whether it is a duck or not, or all of them."""
        found = self.store.events(after_id=after_id)
        return [event for event in found if not mac or mac in (event.mac, event.evidence.get("mac"))]

    def wait_for_event(self, mac: str, kind: str, after_id: int = 0, timeout_s: float = 10.0):
        """The first event of that kind, by its own name or as the reason of a change of state."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for event in self.events(mac, after_id):
                if kind in (event.kind, event.evidence.get("because")):
                    return event
            time.sleep(0.05)
        raise AssertionError(f"no {kind} of {mac}: {[(e.kind, dict(e.evidence)) for e in self.events(mac, after_id)]}")

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(15)
        finally:
            self.process.kill()
            self.process.stdout.close()
            self.log.close()
            self.store.close()


def site_toml() -> str:
    lines = ["[fleet]", 'name = "test"', ""]
    for domain in range(1, NUM_DOMAINS + 1):
        lines += [
            "[[domains]]",
            f'name = "d{domain}"',
            f'interface = "d{domain}"',
            f'host_address = "10.21.{domain}.1"',
        ]
        lines += [f'nodes = "10.21.{domain}.[101-108]"', ""]
    for domain in range(1, NUM_DOMAINS + 1):
        for number in range(1, DUCKS_PER_DOMAIN + 1):
            lines += ["[[ducks]]", f'mac = "{mac_of(domain, number)}"', f'name = "duck{domain}{100 + number}"']
            lines += [f'address = "10.21.{domain}.{100 + number}"', ""]
    return "\n".join(lines)


@pytest.fixture(scope="session")
def network():
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces")
    made = Network()
    yield made
    made.close()


@pytest.fixture(scope="session")
def service(network, image, tmp_path_factory):
    store, _ = image
    made = Service(network, tmp_path_factory.mktemp("state"), store)
    yield made
    made.close()


# -- packet-level clients --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What a server said: the fixed fields (`file` as it is on the wire, 128 bytes) and the options by name."""

    address: str
    file: bytes
    next_server: str
    options: dict

    @property
    def boot_file(self) -> str:
        return self.file.partition(b"\0")[0].decode()


class DhcpClient:
    """Sends one message on one domain's wire and returns the answer that comes back on the same wire."""

    def __init__(self, network: Network, domain: int) -> None:
        self.interface = f"c{domain}"
        self.raw = network.raw_socket(self.interface)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.raw.close()

    def send(self, mac: str, options=(), kind: str = "discover", xid: int | None = None) -> int:
        xid = secrets.randbits(32) if xid is None else xid
        packet = (
            Ether(src=mac, dst="ff:ff:ff:ff:ff:ff")
            / IP(src="0.0.0.0", dst="255.255.255.255")
            / UDP(sport=68, dport=67)
            / BOOTP(chaddr=bytes.fromhex(mac.replace(":", "")), xid=xid, flags=0x8000)
            / DHCP(options=[("message-type", kind), *options, "end"])
        )
        self.raw.send(bytes(packet))
        return xid

    def receive(self, xid: int, timeout_s: float = 5.0) -> "Answer | None":
        return self.receive_all({xid}, timeout_s).get(xid)

    def receive_all(self, xids: set[int], timeout_s: float = 10.0) -> "dict[int, Answer]":
        """The first answer to each of these transactions, as they come."""
        answers: dict[int, Answer] = {}
        deadline = time.monotonic() + timeout_s
        while len(answers) < len(xids) and (left := deadline - time.monotonic()) > 0:
            self.raw.settimeout(left)
            try:
                frame = Ether(self.raw.recv(4096))
            except TimeoutError:
                break
            if BOOTP in frame and frame[BOOTP].op == 2 and frame[BOOTP].xid in xids - set(answers):
                options = {option[0]: option[1] for option in frame[DHCP].options if isinstance(option, tuple)}
                said = frame[BOOTP]
                answers[said.xid] = Answer(said.yiaddr, bytes(said.file), said.siaddr, options)
        return answers

    def ask(self, mac: str, options=(), kind: str = "discover", timeout_s: float = 5.0):
        return self.receive(self.send(mac, options, kind), timeout_s)


@pytest.fixture
def dhcp(network, service):
    """DhcpClient by domain."""
    clients = []

    def make(domain: int = 1) -> DhcpClient:
        clients.append(DhcpClient(network, domain))
        return clients[-1]

    yield make
    for client in clients:
        client.raw.close()


@pytest.fixture(scope="module")
def make_network():
    """Another network than the session's; gone with the module."""
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces")
    made: list[Network] = []

    def make() -> Network:
        made.append(Network())
        return made[-1]

    yield make
    for network in made:
        network.close()


@pytest.fixture(scope="module")
def make_service(make_network):
    made: list[Service] = []

    def make(*arguments) -> Service:
        made.append(Service(*arguments))
        return made[-1]

    yield make
    for service in made:
        service.close()


@pytest.fixture
def make_client():
    made: list[DhcpClient] = []

    def make(network: Network, domain: int) -> DhcpClient:
        made.append(DhcpClient(network, domain))
        return made[-1]

    yield make
    for client in made:
        client.raw.close()
