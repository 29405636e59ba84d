"""A Debian box with a real OpenSSH server at 10.21.1.101: its own network, its own copy of every file, another boot id.

The box is this machine's own system seen through an overlay whose upper layer is in memory, so that whatever a role
changes there (/etc, /usr/local, /var) is gone with it and never touches this machine. /proc and /sys are the
kernel's; what a role would change in them is covered by files of the box's own.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from duckfleet.fleet.vm.smbios import memory_devices
from tests.fleet.network import Network, Segment

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
mount --rbind /sys sys
mount --rbind /dev dev
for folder in run tmp root/.ssh var/lib/duckfleet; do
  mkdir -p $folder
  mount -t tmpfs -o mode=0755 own $folder
done
chmod 1777 tmp
mkdir -p run/sshd etc/duck-ssh
cp {box}/host_key {box}/sshd_config etc/duck-ssh/
chmod 600 etc/duck-ssh/host_key
cp {box}/authorized_keys root/.ssh/
[ -z "{boot_id}" ] || mount --bind {box}/boot_id proc/sys/kernel/random/boot_id
for path in {covered}; do
  mkdir -p {box}/covers/$path
  mount --bind {box}/covers/$path ./$path
done
rm -f usr/sbin/poweroff
cp {box}/poweroff usr/sbin/poweroff
{prepare}
exec chroot . /usr/sbin/sshd -D -e -f /etc/duck-ssh/sshd_config
"""

POWEROFF = """#!/bin/sh
echo off > /run/switched-off
"""


@dataclass(frozen=True)
class Box:
    """A running box."""

    segment: Segment
    pid: int  # of its sshd

    @property
    def mac(self) -> str:
        return (self.path("sys/class/net") / self.segment.far_interface / "address").read_text().strip()

    def path(self, inside: str) -> Path:
        """A file of the box, as it is seen from here."""
        return Path(f"/proc/{self.pid}/root") / inside.lstrip("/")

    def run(self, *command: str) -> str:
        """What a command says there."""
        enter = ("nsenter", "-t", str(self.pid), "-m", "-n", "-r", "-w")
        return subprocess.run([*enter, *command], check=True, capture_output=True, text=True, timeout=60).stdout


@dataclass(frozen=True)
class Plan:
    """What is special about a box. `covered`: folders of /proc and /sys that are its own, with these files."""

    boot_id: str = OTHER_BOOT  # empty: that of this machine
    covered: dict[str, dict[str, str | bytes]] = field(default_factory=dict)
    prepare: Sequence[str] = ()  # shell commands in its root, before its server starts


@contextmanager
def debian_box(net: Network, state: Path, folder: Path, plan: Plan | None = None) -> Iterator[Box]:
    """A running box whose root takes the fleet's key of `state`; `folder` is for its files here."""
    plan = plan or Plan()
    folder.mkdir(parents=True)
    (folder / "layers").mkdir()
    shutil.copy(state / "keys/ssh_ed25519.pub", folder / "authorized_keys")
    (folder / "boot_id").write_text(plan.boot_id + "\n")
    (folder / "poweroff").write_text(POWEROFF)
    (folder / "poweroff").chmod(0o755)
    (folder / "sshd_config").write_text(SSHD_CONFIG.format(address=ADDRESS))
    for path, files in plan.covered.items():
        for name, text in files.items():
            file = folder / "covers" / path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text if isinstance(text, bytes) else text.encode())
    make_key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "host_key")]
    subprocess.run(make_key, check=True, capture_output=True)
    script = ROOT.format(
        box=folder, boot_id=plan.boot_id, covered=" ".join(plan.covered), prepare="\n".join(plan.prepare)
    )
    segment = net.segments[0]
    with (folder / "sshd.log").open("w") as log:
        server = subprocess.Popen(
            ["ip", "netns", "exec", segment.namespace, "unshare", "-m", "sh", "-c", script], stderr=log, stdout=log
        )
    try:
        _wait_until_it_listens(net, server, folder / "sshd.log")
        yield Box(segment, server.pid)
    finally:
        server.terminate()
        server.wait()


def _wait_until_it_listens(net: Network, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 60
    while "listening on" not in log.read_text():
        assert server.poll() is None and time.monotonic() < until, log.read_text()
        time.sleep(0.05)


def site_file(state: Path, box: Box, *, name: str = "ann") -> Path:
    """A site with this box as its only duck."""
    path = state / "duckfleet.toml"
    path.write_text(
        f'[[domains]]\nname = "d1"\ninterface = "{box.segment.interface}"\nhost_address = "10.21.1.1"\n'
        f'nodes = "{ADDRESS}"\n\n[[ducks]]\nmac = "{box.mac}"\naddress = "{ADDRESS}"\nname = "{name}"\n'
    )
    return path


def pin_key(state: Path, folder: Path) -> None:
    """Pin the box's host key, as the first look at it would."""
    key = " ".join((folder / "host_key.pub").read_text().split()[:2])
    (state / "keys/known_hosts").write_text(f"{ADDRESS} {key}\n")
    (state / "keys/known_hosts").chmod(0o600)


def smbios(bios_version: str, sizes_mib: Sequence[int]) -> dict[str, str | bytes]:
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
