"""A real PostgreSQL server for tests: its own cluster in a temporary folder, reached by a socket in it."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

USER = "postgres"


def binaries() -> Path | None:
    """Where the server's programs lie; Debian keeps them off the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    if found:
        return found[0].parent
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None


@contextmanager
def server() -> Iterator[str]:
    """The URL of an empty database of a running server."""
    programs = binaries()
    assert programs is not None
    folder = Path(tempfile.mkdtemp(prefix="duckfleet-pg-"))  # short: a socket's path holds at most 107 bytes
    as_user: dict[str, object] = {}
    owner = pwd.getpwuid(os.geteuid()).pw_name
    if os.geteuid() == 0:  # the server refuses to run as root
        owner = USER
        shutil.chown(folder, USER, USER)
        as_user = {"user": USER, "group": USER}
    environment = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}

    def run(*command: str) -> None:
        subprocess.run(
            command, check=True, cwd=folder, env=environment, stdout=subprocess.DEVNULL, timeout=120, **as_user
        )  # type: ignore[call-overload]

    data = folder / "data"
    try:
        run(str(programs / "initdb"), "--no-sync", "-E", "UTF8", "-A", "trust", "-U", owner, "-D", str(data))
        options = f"-c listen_addresses='' -c unix_socket_directories='{folder}' -c fsync=off"
        run(str(programs / "pg_ctl"), "-w", "-D", str(data), "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"postgresql://{owner}@/postgres?host={folder}"
        finally:
            run(str(programs / "pg_ctl"), "-w", "-m", "immediate", "-D", str(data), "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
