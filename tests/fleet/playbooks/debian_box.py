"""Debian boxes in namespaces: a duck with a real OpenSSH server at 10.21.1.101, and the host of its segment.

A box is this machine's own system seen through an overlay whose upper layer is in memory, so that whatever a role
changes there (/etc, /usr/local, /var) is gone with it and never touches this machine. /proc/sys and /sys are read-only;
what a role would change in them is covered by files of the box's own.
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from duckfleet.fleet.vm.smbios import memory_devices
from tests.fleet.network import Network, run_in

REPOSITORY = Path(__file__).parents[3]
ADDRESS = "10.21.1.101"
OTHER_BOOT = "22222222-3333-4444-5555-666666666666"

SSHD_CONFIG = """\
Port 22
ListenAddress {address}
HostKey /etc/duck-ssh/host_key
PermitRootLogin prohibit-password
PasswordAuthentication no
StrictModes no
UsePAM no
PidFile none
Subsystem sftp internal-sftp
"""

ROOT = """
set -e
mount --make-rprivate /
mount -t tmpfs box {box}/layers
mkdir {box}/layers/upper {box}/layers/work {box}/layers/root
mount -t overlay box -o lowerdir=/,upperdir={box}/layers/upper,workdir={box}/layers/work {box}/layers/root
cd {box}/layers/root
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,ro,bind proc/sys
mount --rbind /sys sys
mount -o remount,ro,bind sys
mount --rbind /dev dev
for path in {seen}; do
  mkdir -p ./$path
  mount --rbind $path ./$path
done
for folder in {own}; do
  mkdir -p $folder
  mount -t tmpfs -o mode=0755 own $folder
done
for path in {covered}; do
  mount --bind {box}/covers/$path ./$path
done
{prepare}
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin chroot . {program}
"""

SSHD = """
chmod 1777 tmp
mkdir -p run/sshd etc/duck-ssh root/.ssh
cp {box}/host_key {box}/sshd_config etc/duck-ssh/
chmod 600 etc/duck-ssh/host_key
cp {box}/authorized_keys root/.ssh/
cp --remove-destination {box}/poweroff usr/sbin/poweroff
"""

POWEROFF = """#!/bin/sh
echo off > /run/switched-off
"""


@dataclass(frozen=True)
class Box:
    """A running box; `pid` is that of its first process."""

    pid: int

    def path(self, inside: str) -> Path:
        """A file of the box, as it is seen from here."""
        return Path(f"/proc/{self.pid}/root") / inside.lstrip("/")

    def inside(self, *command: str) -> list[str]:
        """The command line that runs this there."""
        return ["nsenter", "-t", str(self.pid), "-m", "-n", "-r", "-w", *command]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.inside(*command), capture_output=True, text=True, timeout=240)


Content = str | bytes


@dataclass(frozen=True)
class Plan:
    """What is special about a box."""

    boot_id: str = OTHER_BOOT  # empty: that of this machine
    covered: Mapping[str, Content | Mapping[str, Content]] = field(default_factory=dict)
    """Files, and folders with the files in them, of /proc and /sys that are its own."""
    prepare: Sequence[str] = ()  # shell commands in its root before its first program


@contextmanager
def debian_duck(net: Network, state: Path, folder: Path, plan: Plan | None = None) -> Iterator[Box]:
    """A running duck whose root takes the fleet's key of `state`; `folder` is for its files here."""
    plan = plan or Plan()
    folder.mkdir(parents=True)
    shutil.copy(state / "keys/ssh_ed25519.pub", folder / "authorized_keys")
    (folder / "poweroff").write_text(POWEROFF)
    (folder / "poweroff").chmod(0o755)
    (folder / "sshd_config").write_text(SSHD_CONFIG.format(address=ADDRESS))
    make_key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "host_key")]
    subprocess.run(make_key, check=True, capture_output=True)
    own = ("run", "tmp", "root", "var/lib/duckfleet")
    prepare = (SSHD.format(box=folder), *plan.prepare)
    program = "/usr/sbin/sshd -D -e -f /etc/duck-ssh/sshd_config"
    started = _box(net.segments[0].namespace, folder, plan, own, prepare, program)
    with started as (box, server):
        _wait_until_it_says("listening on", server, folder / "log")
        yield box


@contextmanager
def debian_host(net: Network, state: Path, folder: Path, plan: Plan) -> Iterator[Box]:
    """The host's side of the segment as a box of its own, in which our product and the state directory are seen."""
    folder.mkdir(parents=True)
    program = "/bin/sh -c 'echo there; exec sleep infinity'"
    seen = [path for path in (REPOSITORY, Path(sys.prefix), Path(sys.base_prefix), state) if _is_mounted_apart(path)]
    with _box(net.host, folder, plan, ("run",), plan.prepare, program, seen) as (box, server):
        _wait_until_it_says("there", server, folder / "log")
        yield box


@contextmanager
def _box(
    namespace: str,
    folder: Path,
    plan: Plan,
    own: Sequence[str],
    prepare: Sequence[str],
    program: str,
    seen: Sequence[Path] = (),
) -> Iterator[tuple[Box, subprocess.Popen[bytes]]]:
    (folder / "layers").mkdir()
    boot: dict[str, Content] = {"proc/sys/kernel/random/boot_id": plan.boot_id + "\n"} if plan.boot_id else {}
    covered = {**boot, **plan.covered}
    for path, content in covered.items():
        _write(folder / "covers" / path, content)
    script = ROOT.format(
        box=folder,
        own=" ".join(own),
        covered=" ".join(covered),
        prepare="\n".join(prepare),
        program=program,
        seen=" ".join(str(path) for path in seen),
    )
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            ["ip", "netns", "exec", namespace, "unshare", "-m", "sh", "-c", script], stderr=log, stdout=log
        )
    try:
        yield Box(server.pid), server
    finally:
        server.terminate()
        server.wait()


def _is_mounted_apart(path: Path) -> bool:
    """An overlay of / shows nothing of what is mounted below it."""
    return path.stat().st_dev != Path("/").stat().st_dev


def _write(path: Path, content: Content | Mapping[str, Content]) -> None:
    if isinstance(content, Mapping):
        path.mkdir(parents=True, exist_ok=True)
        for name, inner in content.items():
            _write(path / name, inner)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def _wait_until_it_says(words: str, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 60
    while words not in log.read_text():
        assert server.poll() is None and time.monotonic() < until, log.read_text()
        time.sleep(0.05)


def site_file(net: Network, state: Path, *, name: str = "ann") -> Path:
    """A site with the box on the segment's far side as its only duck."""
    segment = net.segments[0]
    link = run_in(segment.namespace, "ip", "-j", "link", "show", "dev", segment.far_interface).stdout
    path = state / "duckfleet.toml"
    path.write_text(
        f'[[domains]]\nname = "d1"\ninterface = "{segment.interface}"\nhost_address = "10.21.1.1"\n'
        f'nodes = "{ADDRESS}"\n\n[[ducks]]\nmac = "{json.loads(link)[0]["address"]}"\naddress = "{ADDRESS}"\n'
        f'name = "{name}"\n'
    )
    return path


def pin_key(state: Path, folder: Path) -> None:
    """Pin the box's host key, as the first look at it would."""
    key = " ".join((folder / "host_key.pub").read_text().split()[:2])
    (state / "keys/known_hosts").write_text(f"{ADDRESS} {key}\n")
    (state / "keys/known_hosts").chmod(0o600)


def smbios(bios_version: str, sizes_mib: Sequence[int]) -> dict[str, Content]:
    """Files of /sys/firmware that the real dmidecode reads (DSP0134: 5.2.2, 7.1, 7.2, 7.18)."""
    bios = _structure(0, struct.pack("<BBHBBQ", 1, 2, 0xE000, 3, 0, 0), ("Ducks Inc.", bios_version, "03/14/2025"))
    system = _structure(1, struct.pack("<BBBB", 1, 2, 3, 4), ("Ducks Inc.", "N100 box", "1", "SN-42"))
    table = bios + system + memory_devices(sizes_mib) + _structure(127, b"", ())
    entry = struct.pack("<5sBBBBBBBIQ", b"_SM3_", 0, 24, 3, 3, 0, 1, 0, len(table), 0)
    entry = entry[:5] + bytes([-sum(entry) & 0xFF]) + entry[6:]
    return {"dmi/tables/smbios_entry_point": entry, "dmi/tables/DMI": table}


def _structure(kind: int, body: bytes, strings: Sequence[str]) -> bytes:
    text = b"".join(string.encode() + b"\0" for string in strings) or b"\0"
    return struct.pack("<BBH", kind, 4 + len(body), kind) + body + text + b"\0"
