"""A shell on a duck over ssh, with the fleet's key and pinned host keys. The only user of paramiko."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from duckfleet.fleet.errors import DuckUnreachable
from duckfleet.fleet.trust import SSH_KEY_FILE
from duckfleet.inventory.site import Duck

if TYPE_CHECKING:
    import paramiko

MAX_OUTPUT_BYTES = 1 << 20
KNOWN_HOSTS = "known_hosts"


class DuckShell:
    """Commands on one duck, as root, each bounded in time. Every failure is a `DuckUnreachable` that names the duck.

    `host_key` ("ssh-ed25519 AAAA…") is what the duck's daemon said under the fleet's keys: only that is taken, and
    is pinned from then on, for a box that makes itself a new one at each start. Without it the key pinned before
    counts (file `known_hosts` beside the keys), and another one is refused; the first that is ever seen is pinned.
    """

    def __init__(
        self,
        duck: Duck,
        keys_dir: Path,
        *,
        port: int = 22,
        user: str = "root",
        timeout_s: float = 10.0,
        host_key: str = "",
    ) -> None:
        self._duck = duck
        self._timeout_s = timeout_s
        with self._mapped():
            self._client = self._connect(keys_dir, port, user, host_key)

    def _connect(self, keys_dir: Path, port: int, user: str, host_key: str) -> paramiko.SSHClient:
        import paramiko

        client = paramiko.SSHClient()
        known = keys_dir / KNOWN_HOSTS
        known.touch(mode=0o600, exist_ok=True)
        if host_key:
            pin(known, self._duck.address if port == 22 else f"[{self._duck.address}]:{port}", host_key)
        client.load_host_keys(str(known))
        client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
        client.connect(
            self._duck.address,
            port=port,
            username=user,
            key_filename=str(keys_dir / SSH_KEY_FILE),
            allow_agent=False,
            look_for_keys=False,
            timeout=self._timeout_s,
            banner_timeout=self._timeout_s,
            auth_timeout=self._timeout_s,
        )
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def run(self, command: str, *, timeout_s: float | None = None) -> str:
        """Its standard output. Raises when it ends with anything but 0, or does not end in time."""
        limit_s = timeout_s or self._timeout_s
        until = time.monotonic() + limit_s
        with self._mapped():
            _, out, err = self._client.exec_command(command, timeout=limit_s)
            parts, size = [], 0
            # The channel's own time-out is for silence: a command that keeps talking is bounded here.
            while (part := out.channel.recv(1 << 16)) and (size := size + len(part)) <= MAX_OUTPUT_BYTES:
                parts.append(part)
                if time.monotonic() > until:
                    raise TimeoutError(f"`{command}` did not end in {limit_s:g} s")
            text = b"".join(parts).decode(errors="replace")
            if part:
                return text  # as much of it as anybody reads
            if not out.channel.status_event.wait(max(0.0, until - time.monotonic())):
                raise TimeoutError(f"`{command}` did not end in {limit_s:g} s")
            code = out.channel.recv_exit_status()
        if code != 0:
            said = err.read(4096).decode(errors="replace").strip() or text.strip()[-200:] or "nothing"
            raise DuckUnreachable(f"duck {self._duck.name}: `{command}` ended with {code}: {said}")
        return text

    def start(self, command: str) -> None:
        """Run a command that may take the connection down with it."""
        with self._mapped():
            _, out, _ = self._client.exec_command(command, timeout=self._timeout_s)
            out.channel.settimeout(2.0)
            try:
                out.read(1)
            except OSError:
                return  # gone silent, as it was told to

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        import paramiko

        where = f"duck {self._duck.name}: ssh to {self._duck.address}"
        try:
            yield
        except paramiko.BadHostKeyException as error:
            raise DuckUnreachable(
                f"{where}: another host key than the one pinned when it was first seen. If the box was set up anew, "
                f"remove its line from {KNOWN_HOSTS} in the keys' folder"
            ) from error
        except paramiko.AuthenticationException as error:
            raise DuckUnreachable(f"{where}: it does not take the fleet's ssh key; boot it from our image") from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise DuckUnreachable(f"{where}: {str(error) or type(error).__name__}") from error


_pinning = threading.Lock()


def pin(known_hosts: Path, name: str, host_key: str) -> None:
    """Put this key in place of any that was pinned for `name`. A text that is no key changes nothing."""
    import paramiko

    entry = paramiko.hostkeys.HostKeyEntry.from_line(f"{name} {host_key}")
    if entry is None or entry.key is None:
        return
    with _pinning:
        pinned = paramiko.HostKeys(str(known_hosts))
        if pinned.check(name, entry.key):
            return
        if name in pinned:
            del pinned[name]
        pinned.add(name, entry.key.get_name(), entry.key)
        scratch = known_hosts.with_name(f".{known_hosts.name}.{os.getpid()}")
        pinned.save(str(scratch))
        scratch.chmod(0o600)
        scratch.replace(known_hosts)
