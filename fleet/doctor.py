"""What on this host stands in the way of a fleet, and what to do about it. Each check is a function to findings."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from duckfleet.fleet.announcement import Announcement, running_server
from duckfleet.fleet.context import FleetContext
from duckfleet.inventory.errors import DuckfleetError
from duckfleet.inventory.site import Domain, Site

DUCK_TIMEOUT_S = 1.5
GOOD, WARNING, BAD, UNKNOWN = "good", "warning", "bad", "unknown"
WANTED_RMEM_BYTES = 4 << 20
WANTED_FREE_BYTES = 2 << 30
LEAST_FREE_BYTES = 16 << 20  # the store and its log grow too
# What runs without these: the scalar kernels, at a small part of the speed.
CPU_FLAGS = ("avx2", "fma", "f16c")
# Without these the data plane's tags are ChaCha20-Poly1305, which costs more.
TAG_FLAGS = ("aes", "pclmulqdq")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `fix` is empty when there is nothing to do."""

    subject: str
    verdict: str  # good, warning, bad, or unknown: it could not be looked at
    detail: str
    fix: str = ""


def examine(fleet: FleetContext, server_port: int) -> Iterator[Finding]:
    """All checks, in the order in which a person would go about it."""
    yield from _versions()
    yield from _cpu(Path("/proc/cpuinfo"))
    yield from _clock(fleet)
    yield from _state(fleet)
    yield from _keys(fleet)
    yield from _port("HTTP server", "127.0.0.1", server_port, socket.SOCK_STREAM, running_server(fleet.state_dir))
    yield from _buffers(Path("/proc/sys/net/core/rmem_max"))
    yield from _tools()
    yield from _site(fleet)
    yield from _ducks(fleet)


def _versions() -> Iterator[Finding]:
    from duckfleet.runtime.control import duckd_path

    ours = metadata.version("duckfleet")
    yield Finding("python", GOOD if sys.version_info >= (3, 11) else BAD, platform.python_version())
    yield Finding("duckfleet", GOOD, ours)
    try:
        path = duckd_path()
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10).stdout.strip()
    except (DuckfleetError, OSError, subprocess.TimeoutExpired) as error:
        yield Finding("duckd", BAD, str(error), "install duckfleet again: pip install --force-reinstall duckfleet")
        return
    if said.split()[:2] == ["duckd", ours]:
        yield Finding("duckd", GOOD, said)
    else:
        fix = "host and ducks must be of one version: install duckfleet again, then build and boot a new image"
        yield Finding("duckd", BAD, f"{path} says {said or 'nothing'!r}, this is {ours}", fix)


def _cpu(cpuinfo: Path) -> Iterator[Finding]:
    try:
        text = cpuinfo.read_text()
    except OSError as error:
        yield Finding("CPU", UNKNOWN, str(error))
        return
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    values = {key.strip(): value.strip() for key, value in fields.items()}
    model, flags = values.get("model name", "unknown model"), values.get("flags", "").split()
    lacking = [flag for flag in CPU_FLAGS if flag not in flags]
    if lacking:
        yield Finding("CPU", WARNING, f"{model} lacks {', '.join(lacking)}", "the slow scalar kernels will be used")
    else:
        yield Finding("CPU", GOOD, f"{model}, {os.cpu_count()} threads, {', '.join(CPU_FLAGS)}")
    if any(flag not in flags for flag in TAG_FLAGS):
        yield Finding("CPU", WARNING, "no AES instructions", "the wire's tags cost more; nothing to do")


def _clock(fleet: FleetContext) -> Iterator[Finding]:
    now_s = time.time()
    try:
        events = fleet.store.events(limit=1)
    except DuckfleetError as error:
        yield Finding("store", BAD, str(error))
        return
    yield Finding("store", GOOD, fleet.store.url)
    built_s = Path(__file__).stat().st_mtime
    if events and events[0].at_s > now_s + 60:
        ahead = f"the newest event of the log is {events[0].at_s - now_s:.0f} s in the future"
        yield Finding("clock", BAD, ahead, "the clock went back: set it (timedatectl set-ntp true)")
    elif now_s < built_s - 86_400:
        yield Finding("clock", BAD, f"{time.ctime(now_s)}, older than this program", "timedatectl set-ntp true")
    else:
        yield Finding("clock", GOOD, time.strftime("%F %T %Z"))


def _state(fleet: FleetContext) -> Iterator[Finding]:
    folder = fleet.state_dir
    if not os.access(folder, os.W_OK):
        yield Finding("state directory", BAD, f"{folder} cannot be written", "choose another: --state DIR")
        return
    free = shutil.disk_usage(folder).free
    verdict = GOOD if free >= WANTED_FREE_BYTES else WARNING if free >= LEAST_FREE_BYTES else BAD
    fix = "" if verdict == GOOD else "make room: a prepared model is as large as its weights"
    yield Finding("state directory", verdict, f"{folder}, {free / 2**30:.1f} GiB free", fix)


def _keys(fleet: FleetContext) -> Iterator[Finding]:
    from duckfleet.fleet.trust import fingerprint, key_files

    if fleet.no_auth:
        yield Finding("keys", WARNING, "--no-auth: nothing is authenticated", "run `duckctl init`, leave --no-auth out")
        return
    try:
        keys = fleet.keys
        assert keys is not None
    except DuckfleetError as error:
        yield Finding("keys", BAD, str(error))
        return
    for file in key_files(fleet.keys_dir):
        if not file.is_safe:
            yield Finding("keys", BAD, f"{file.path} can be read by others", f"chmod 600 {file.path}")
    yield Finding("keys", GOOD, f"{fleet.keys_dir}, fingerprint {fingerprint(keys.public)}")


def _port(what: str, address: str, port: int, kind: socket.SocketKind, ours: Announcement | None) -> Iterator[Finding]:
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            if ours is not None and ours.url.endswith(f":{port}"):
                yield Finding(what, GOOD, f"{ours.model} is served at {ours.url}, pid {ours.pid}")
            else:
                yield Finding(what, WARNING, f"{address}:{port}: {error.strerror}", "serve on another one: --port N")
            return
    yield Finding(what, GOOD, f"{address}:{port} is free")


def _buffers(setting: Path) -> Iterator[Finding]:
    try:
        value = int(setting.read_text())
    except (OSError, ValueError) as error:
        yield Finding("socket buffers", UNKNOWN, str(error))
        return
    if value < WANTED_RMEM_BYTES:
        fix = f"sysctl -w net.core.rmem_max={WANTED_RMEM_BYTES}"
        yield Finding("socket buffers", WARNING, f"net.core.rmem_max is {value}: bursts of replies may be lost", fix)
    else:
        yield Finding("socket buffers", GOOD, f"net.core.rmem_max is {value}")


def _tools() -> Iterator[Finding]:
    for program, package, purpose in (
        ("dnsmasq", "dnsmasq-base", "booting ducks over the network"),
        ("qemu-system-x86_64", "qemu-system-x86", "labs of virtual machines"),
    ):
        path = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
        if path:
            yield Finding(program, GOOD, path)
        else:
            yield Finding(program, WARNING, f"is not installed; needed for {purpose}", f"apt install {package}")


def _site(fleet: FleetContext) -> Iterator[Finding]:
    try:
        site = fleet.site
    except DuckfleetError as error:
        first, *more = str(error).splitlines()
        yield Finding("site file", BAD, first + (f" (and {len(more)} more)" if more else ""))
        return
    yield Finding("site file", GOOD, f"{site.path}: {len(site.ducks)} ducks in {len(site.domains)} domains")
    for domain in site.domains:
        yield _interface(site, domain)


def _ducks(fleet: FleetContext) -> Iterator[Finding]:
    """Who answers, and who of them is of another release or has other keys. A duck that is off is no finding."""
    from duckfleet.fleet.reach import identify, on_all
    from duckfleet.inventory.errors import MachineError
    from duckfleet.runtime.control import HostNetworkDown, release_remark
    from duckfleet.runtime.errors import DuckLost

    try:
        site, keys = fleet.site, fleet.keys
    except DuckfleetError:
        return  # said already
    answering = 0
    for duck, answer in on_all(site.ducks, lambda duck: identify(site, duck, keys, DUCK_TIMEOUT_S)):
        if isinstance(answer, HostNetworkDown | DuckLost):
            continue
        if isinstance(answer, MachineError):
            yield Finding(f"duck {duck.name}", BAD, str(answer))
            continue
        answering += 1
        if remark := release_remark(answer.duckd_version):
            yield Finding(f"duck {duck.name}", WARNING, remark)
    yield Finding("ducks", GOOD, f"{answering} of {len(site.ducks)} answer as ours")


def _interface(site: Site, domain: Domain) -> Finding:
    import psutil

    subject = f"domain {domain.name}"
    stats = psutil.net_if_stats().get(domain.interface)
    if stats is None:
        there = ", ".join(sorted(psutil.net_if_stats()))
        return Finding(subject, BAD, f"there is no interface {domain.interface}", f"interfaces here: {there}")
    if not stats.isup:
        return Finding(subject, BAD, f"{domain.interface} is down", f"ip link set {domain.interface} up")
    has = [item.address for item in psutil.net_if_addrs().get(domain.interface, []) if item.family == socket.AF_INET]
    if domain.host_address not in has and domain.interface != "lo":
        fix = f"ip address add {domain.host_address}/{domain.prefix_len} dev {domain.interface}"
        return Finding(subject, BAD, f"{domain.interface} does not have the address {domain.host_address}", fix)
    if domain.mtu > stats.mtu:
        fix = f"ip link set {domain.interface} mtu {domain.mtu}"
        return Finding(subject, BAD, f"{domain.interface} has an mtu of {stats.mtu}, {domain.mtu} is stated", fix)
    speed = f", {stats.speed} Mbit/s" if stats.speed else ""
    return Finding(subject, GOOD, f"{domain.interface} {domain.host_address}/{domain.prefix_len}{speed}")
