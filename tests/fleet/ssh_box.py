"""A box with a real ssh server at 10.21.1.101, in namespaces where home, poweroff and boot id are its own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fleet.network import Network

OTHER_BOOT = "11111111-2222-3333-4444-555555555555"

DUCK = """
set -e
mount --make-rprivate /
mount --bind {box}/root /root
mount --bind {box}/poweroff /usr/sbin/poweroff
mount --bind {box}/poweroff /usr/sbin/reboot
[ -z "{boot_id}" ] || mount --bind {box}/boot_id /proc/sys/kernel/random/boot_id
exec dropbear -F -E -s -r {box}/host_key -p 10.21.1.101:22 -P {box}/pid
"""


@contextmanager
def ssh_box(net: Network, state: Path, boot: str) -> Iterator[Path]:
    """A running ssh server; yields the folder in which its poweroff leaves a mark."""
    box = state / "box"
    (box / "root/.ssh").mkdir(parents=True)
    box.chmod(0o755)
    (box / "root").chmod(0o700)
    (box / "root/.ssh").chmod(0o700)
    shutil.copy(state / "keys/ssh_ed25519.pub", box / "root/.ssh/authorized_keys")
    (box / "poweroff").write_text(f"#!/bin/sh\necho $0 >> {box}/mark\n")
    (box / "poweroff").chmod(0o755)
    (box / "boot_id").write_text(boot + "\n")
    subprocess.run(["dropbearkey", "-t", "ed25519", "-f", box / "host_key"], check=True, capture_output=True)
    script = DUCK.format(box=box, boot_id=boot)
    server = subprocess.Popen(
        ["ip", "netns", "exec", net.segments[0].namespace, "unshare", "-m", "sh", "-c", script],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    assert "Not backgrounding" in server.stderr.readline()
    try:
        yield box
    finally:
        server.terminate()
        server.wait()
