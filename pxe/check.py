"""`duckctl pxe check`: what would keep ducks from booting, found before anybody walks to a rack."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
import struct
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from duckfleet.inventory.errors import OperatorError
from duckfleet.pxe.boot_files import BootFiles
from duckfleet.pxe.clients import BootDomain, BootSite
from duckfleet.pxe.dhcp_probe import Offer, other_servers
from duckfleet.pxe.dnsmasq_config import BIOS_LOADER, EFI_LOADER, ServiceSettings
from duckfleet.pxe.events import BootEvent
from duckfleet.pxe.policy import DuckImage, Policy

SIOCGIFADDR = 0x8915  # Linux, include/uapi/linux/sockios.h
SIOCGIFFLAGS = 0x8913
IFF_UP, IFF_RUNNING = 0x1, 0x40


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One thing looked at. `verdict`: ok, warning (boots may still work), failure, unknown (could not be looked at)."""

    verdict: str
    subject: str
    finding: str


def check_all(
    site: BootSite, settings: ServiceSettings, files: BootFiles, policy: Policy, past: Sequence[BootEvent]
) -> list[CheckResult]:
    """Every check, in the order in which they would stop a boot. Asks the network; takes a few seconds."""
    results = [_program("dnsmasq", "dnsmasq-base"), *_loaders(files), _image(files, policy)]
    with ThreadPoolExecutor(max(1, len(site.domains))) as pool:  # each waits for answers
        for of_domain in pool.map(lambda domain: _domain(domain, settings), site.domains):
            results += of_domain
    results += [_port(site, *port) for port in (("UDP", 67), ("UDP", 69), ("TCP", settings.http_port))]
    return results + list(secure_boot(past))


def _domain(domain: BootDomain, settings: ServiceSettings) -> list[CheckResult]:
    results = check_interface(domain)
    if not any(result.verdict == "failure" for result in results):
        results.append(_servers(domain, settings))
    return results


def _program(name: str, package: str) -> CheckResult:
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if path:
        return CheckResult("ok", name, path)
    return CheckResult("failure", name, f"is not installed: install Debian's package {package}")


def _loaders(files: BootFiles) -> Iterable[CheckResult]:
    for name in (BIOS_LOADER, EFI_LOADER):
        path = files.loader(name)
        if path and path.is_file():
            yield CheckResult("ok", f"loader {name}", str(path))
        else:
            yield CheckResult("failure", f"loader {name}", f"{path} is missing: install Debian's package ipxe")


def _image(files: BootFiles, policy: Policy) -> CheckResult:
    choice = policy.default if isinstance(policy.default, DuckImage) else DuckImage()
    try:
        image = files.image(choice)
    except OperatorError as error:
        return CheckResult("failure", "duck image", str(error))
    if image.warnings:
        return CheckResult("warning", "duck image", "; ".join(image.warnings))
    return CheckResult("ok", "duck image", f"{image.id}, kernel {image.kernel_version}, {image.num_bytes / 1e6:.1f} MB")


def check_interface(domain: BootDomain) -> list[CheckResult]:
    """Whether the domain's interface is there, up, plugged in, and has the host's address."""
    subject = f"{domain.name}: interface {domain.interface}"
    names = sorted(name for _, name in socket.if_nameindex())
    if domain.interface not in names:
        return [CheckResult("failure", subject, f"does not exist (there are {', '.join(names)})")]
    flags = _flags_of(domain.interface)
    if not flags & IFF_UP:
        return [CheckResult("failure", subject, f"is down: ip link set {domain.interface} up")]
    results = []
    if not flags & IFF_RUNNING:
        results.append(CheckResult("warning", subject, "is up and has no carrier: is its cable plugged in?"))
    address = _address_of(domain.interface)
    if address != domain.host_address:
        have = address or "no address"
        command = f"ip address add {domain.host_address}/{domain.prefix_len} dev {domain.interface}"
        results.append(CheckResult("failure", subject, f"has {have}, not {domain.host_address}: {command}"))
    return results or [CheckResult("ok", subject, f"up, {domain.host_address}")]


def _flags_of(interface: str) -> int:
    # Not from /sys: that shows the network of whoever mounted it, which need not be ours.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        reply = fcntl.ioctl(probe, SIOCGIFFLAGS, struct.pack("256s", interface.encode()[:15]))
    return int(struct.unpack_from("H", reply, 16)[0])


def _address_of(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            reply = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return ""
    return socket.inet_ntoa(reply[20:24])


def _servers(domain: BootDomain, settings: ServiceSettings) -> CheckResult:
    subject = f"{domain.name}: other DHCP servers"
    try:
        return judge_offers(domain, settings.mode, other_servers(domain.interface))
    except OperatorError as error:
        return CheckResult("unknown", subject, f"{error} (needs root)")


def judge_offers(domain: BootDomain, mode: str, offers: Sequence[Offer]) -> CheckResult:
    """What it means that these servers offered an address to a machine that nobody knows."""
    subject = f"{domain.name}: other DHCP servers"
    offers = [offer for offer in offers if offer.server != domain.host_address]
    found = ", ".join(offer.server for offer in offers)
    if mode == "proxy":
        if offers:
            return CheckResult("ok", subject, f"{found} gives addresses; we only say what to boot")
        return CheckResult("failure", subject, "none answers, and in proxy mode one must give the addresses")
    if offers:
        return CheckResult("failure", subject, f"{found} answers too: ducks would follow either (or use --mode proxy)")
    return CheckResult("ok", subject, "none answers")


def _port(site: BootSite, kind: str, port: int) -> CheckResult:
    subject = f"port {port}/{kind}"
    for domain in site.domains:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM if kind == "TCP" else socket.SOCK_DGRAM) as probe:
            if kind == "TCP":
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((domain.host_address, port))
            except PermissionError:
                return CheckResult("unknown", subject, "needs root to look")
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL:  # said by the check of the domain's interface
                    return CheckResult("unknown", subject, f"{domain.host_address} is not an address of this host yet")
                why = f"on {domain.host_address}: {error.strerror} (fine if `duckctl pxe serve` runs)"
                return CheckResult("warning", subject, why)
    return CheckResult("ok", subject, "free")


def secure_boot(past: Sequence[BootEvent]) -> Iterable[CheckResult]:
    """Machines that fetched the EFI loader and never came back as iPXE: their firmware refused to run it."""
    waiting: dict[str, BootEvent] = {}
    for event in past:
        if event.kind in ("tftp_sent", "file_sent") and event.evidence.get("file") == EFI_LOADER:
            waiting[event.mac] = event
        elif event.kind == "dhcp_request" and event.evidence.get("stage") == "ipxe":
            waiting.pop(event.mac, None)
    for event in waiting.values():
        name = event.client or event.mac or "a machine"
        why = f"fetched {EFI_LOADER} and did not start it: switch Secure Boot off in its firmware"
        yield CheckResult("warning", name, why)
    if not waiting:
        yield CheckResult("ok", "Secure Boot", "no machine was seen to refuse the loader")
