"""The report every night: a systemd timer, or a line of the crontab; put there, and removed again."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from duckfleet.fleet.report.page import EXIT_BASE, SEVERITIES
from duckfleet.fleet.supervise import systemd_word
from duckfleet.inventory.errors import MachineError, OperatorError

SYSTEMD, CRON = "systemd", "cron"
TIMEOUT_S = 30.0
SERVICE = """\
[Unit]
Description=duckfleet report on {state}
After=network-online.target
Wants=network-online.target

[Service]
Type=oneshot
ExecStart={command}
# The worst finding, from note to critical: the report was made all the same.
SuccessExitStatus={codes}
"""
TIMER = """\
[Unit]
Description=duckfleet report on {state}, every night

[Timer]
OnCalendar=*-*-* {hour:02}:{minute:02}:00
# A host that was off at that time makes it when it starts.
Persistent=true

[Install]
WantedBy=timers.target
"""


@dataclass(frozen=True, slots=True)
class Nightly:
    """What is run, and when (the host's local time); each state directory has its own."""

    command: tuple[str, ...]
    state: Path
    hour: int
    minute: int

    @property
    def name(self) -> str:
        return f"duckfleet-report-{hashlib.sha256(os.fsencode(self.state)).hexdigest()[:8]}"

    @property
    def files(self) -> dict[str, str]:
        """The units, by file name."""
        codes = " ".join(str(EXIT_BASE + number) for number in range(1, len(SEVERITIES) + 1))
        state = str(self.state).replace("%", "%%")
        command = " ".join(systemd_word(word) for word in self.command)
        return {
            f"{self.name}.service": SERVICE.format(state=state, command=command, codes=codes),
            f"{self.name}.timer": TIMER.format(state=state, hour=self.hour, minute=self.minute),
        }

    @property
    def cron_line(self) -> str:
        """Only errors are said, for cron mails what is; `%` would be a line break (crontab(5))."""
        command = shlex.join(self.command).replace("%", r"\%")
        return f"{self.minute} {self.hour} * * * {command} >/dev/null {self.mark}"

    @property
    def mark(self) -> str:
        return f"# {self.name}"


def parse_time(text: str) -> tuple[int, int]:
    """HH:MM. Raises `OperatorError`."""
    hour, colon, minute = text.partition(":")
    if colon and hour.isdigit() and minute.isdigit() and len(minute) == 2 and int(hour) < 24 and int(minute) < 60:
        return int(hour), int(minute)
    raise OperatorError(f"{text!r} is no time of day: write HH:MM")


@dataclass(frozen=True, slots=True)
class Systemd:
    """Timers of the host, or of a user. `root`: another system's files, where nothing is started."""

    is_user: bool
    root: Path = Path("/")

    @classmethod
    def here(cls) -> Systemd:
        return cls(os.geteuid() != 0)

    @property
    def is_running(self) -> bool:
        return Path("/run/systemd/system").is_dir() and self.root == Path("/")

    @property
    def folder(self) -> Path:
        if self.is_user:
            home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
            return home / "systemd/user"
        return self.root / "etc/systemd/system"

    def install(self, nightly: Nightly) -> str:
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, text in nightly.files.items():
            (self.folder / name).write_text(text, encoding="utf-8")
        if self.is_running:
            self._systemctl("daemon-reload")
        self._systemctl("enable", *(["--now"] if self.is_running else []), f"{nightly.name}.timer")
        when = "" if self.is_running else " (systemd does not run now; it starts with the host)"
        return f"{self.folder / nightly.name}.timer{when}"

    def remove(self, nightly: Nightly) -> bool:
        there = [self.folder / name for name in nightly.files if (self.folder / name).exists()]
        if not there:
            return False
        self._systemctl("disable", *(["--now"] if self.is_running else []), f"{nightly.name}.timer")
        for path in there:
            path.unlink()
        if self.is_running:
            self._systemctl("daemon-reload")
        return True

    def _systemctl(self, *arguments: str) -> None:
        where = ["--user"] if self.is_user else ["--root", str(self.root)] if self.root != Path("/") else []
        _run(["systemctl", *where, *arguments])


@dataclass(frozen=True, slots=True)
class Crontab:
    """The crontab of whoever runs this."""

    program: tuple[str, ...] = ("crontab",)

    def install(self, nightly: Nightly) -> str:
        self._write([*self._others(nightly), nightly.cron_line])
        return "the crontab"

    def remove(self, nightly: Nightly) -> bool:
        others = self._others(nightly)
        if len(others) == len(self._lines()):
            return False
        self._write(others)
        return True

    def _others(self, nightly: Nightly) -> list[str]:
        return [line for line in self._lines() if not line.endswith(nightly.mark)]

    def _lines(self) -> list[str]:
        """An empty one where the program says that there is none, whatever its words."""
        done = subprocess.run([*self.program, "-l"], capture_output=True, text=True, timeout=TIMEOUT_S)
        return done.stdout.splitlines() if done.returncode == 0 else []

    def _write(self, lines: Sequence[str]) -> None:
        _run([*self.program, "-"], stdin="".join(line + "\n" for line in lines))


def choose(kind: str) -> Systemd | Crontab:
    """Of `systemd`, `cron`, or empty: systemd where it runs, else cron. Raises `OperatorError`."""
    has_cron = shutil.which("crontab") is not None
    systemd = Systemd.here()
    kind = kind or (SYSTEMD if systemd.is_running else CRON if has_cron else "")
    if kind == SYSTEMD and shutil.which("systemctl") is not None:
        return systemd
    if kind == CRON and has_cron:
        return Crontab()
    missing = {SYSTEMD: "there is no systemctl here", CRON: "there is no crontab here"}
    raise OperatorError(
        f"{missing.get(kind, 'neither systemd nor cron runs here')}; "
        "`duckctl report install --print` shows the units and the line for a scheduler of yours"
    )


def everywhere() -> tuple[Systemd | Crontab, ...]:
    """Wherever it may have been put."""
    found: list[Systemd | Crontab] = [Systemd.here()] if shutil.which("systemctl") else []
    return (*found, Crontab()) if shutil.which("crontab") else tuple(found)


def _run(command: Sequence[str], stdin: str = "") -> None:
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineError(f"`{shlex.join(command)}` failed: {error}") from error
    if done.returncode:
        raise MachineError(f"`{shlex.join(command)}` failed: {' '.join((done.stderr or done.stdout).split())}")
