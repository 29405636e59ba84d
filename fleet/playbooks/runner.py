"""One run of ansible-playbook by ansible-runner, in a private data directory. The only user of ansible_runner.

Nothing of the user's own Ansible counts (configuration, environment), and nothing outlives the run: every process of
it carries a mark in its environment, by which what is left at the end is found, whatever session or parent it has.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from duckfleet.fleet.lab.ownership import ProcessId, processes_marked
from duckfleet.inventory.errors import OperatorError

RUN_VARIABLE = "DUCKFLEET_PLAYBOOK_RUN"
"""Environment variable that every process of a run carries; its value is the run's folder."""
IDENT = "ansible"
EVENTS_DIR = f"artifacts/{IDENT}/job_events"
OUTPUT_FILE = f"artifacts/{IDENT}/stdout"
FORKS = 16
POLL_S = 1
GRACE_S = 10.0  # from ctrl-C until Ansible is killed
KEPT_VARIABLES = ("HOME", "PATH", "USER", "LOGNAME", "TMPDIR", "TERM")
CONFIG = """\
[defaults]
forks = {forks}
gathering = explicit
interpreter_python = auto_silent
local_tmp = {scratch}/local
retry_files_enabled = false
deprecation_warnings = false
localhost_warning = false
nocows = true

[connection]
pipelining = true

[ssh_connection]
ssh_args = -o ControlMaster=auto -o ControlPersist=30s
control_path_dir = {scratch}
retries = 0
"""


@dataclass(frozen=True)
class Request:
    """What is to be run."""

    folder: Path  # of this run alone
    playbook: Path
    inventory: Mapping[str, Any]  # as Ansible reads it from a JSON file
    variables: Mapping[str, Any]
    is_check: bool = False  # only say what would change


@dataclass(frozen=True, slots=True)
class Finished:
    """How it ended."""

    return_code: int
    was_interrupted: bool
    last_words: str  # of what Ansible printed


def play(request: Request, on_event: Callable[[Mapping[str, Any]], None]) -> Finished:
    """Run it to its end; `on_event` gets each of ansible-runner's events as it comes.

    SIGINT and SIGTERM end the run, are not raised, and leave no process of it.
    """
    with tempfile.TemporaryDirectory(prefix="duckfleet-") as scratch, _told_to_stop() as told:
        # Sockets lie there: their paths must be short, wherever the state directory is.
        _write_inputs(request, Path(scratch))
        try:
            return _play(request, on_event, told)
        finally:
            for process in processes_marked(RUN_VARIABLE, str(request.folder)):
                process.end(0.0)


def _play(request: Request, on_event: Callable[[Mapping[str, Any]], None], told: threading.Event) -> Finished:
    from ansible_runner.interface import init_runner

    def handle(event: Mapping[str, Any]) -> bool:
        on_event(event)
        return True  # keep its file

    runner = init_runner(
        private_data_dir=str(request.folder),
        project_dir=str(request.playbook.parent),
        playbook=str(request.playbook),
        inventory=str(request.folder / "inventory"),
        ident=IDENT,
        cmdline="--check --diff" if request.is_check else "--diff",
        settings={"pexpect_timeout": POLL_S},
        envvars={
            RUN_VARIABLE: str(request.folder),
            "ANSIBLE_CONFIG": str(request.folder / "ansible.cfg"),
            "ANSIBLE_CALLBACK_PLUGINS": "",
            "ANSIBLE_HOST_KEY_CHECKING": "True",  # ansible-runner turns it off where this is not set
            "PATH": _search_path(),
            "LC_ALL": "C.UTF-8",
        },
        quiet=True,
        event_handler=handle,
        cancel_callback=_Stop(told, str(request.folder)),
    )
    inherited = os.environ
    runner.config.env = {
        name: value
        for name, value in runner.config.env.items()
        if name in KEPT_VARIABLES or name not in inherited or inherited[name] != value
    }
    # Whoever kills us with a signal that we do not hear of ends Ansible too, and with it what runs on the ducks.
    runner.config.command = ["setpriv", "--pdeathsig", "INT", *runner.config.command]
    runner.run()
    output = (request.folder / OUTPUT_FILE).read_text(encoding="utf-8", errors="replace")
    return Finished(int(runner.rc), told.is_set(), "\n".join(output.strip().splitlines()[-12:]))


class _Stop:
    """Whether to kill the run now; asked often. Once told to stop, Ansible first gets time to end its own workers."""

    def __init__(self, told: threading.Event, mark: str) -> None:
        self._told = told
        self._mark = mark
        self._until_s = 0.0

    def __call__(self) -> bool:
        if not self._told.is_set():
            return False
        if not self._until_s:
            self._until_s = time.monotonic() + GRACE_S
            for process in processes_marked(RUN_VARIABLE, self._mark):
                _interrupt(process)
        return time.monotonic() > self._until_s


def _interrupt(process: ProcessId) -> None:
    import psutil

    try:
        if process.is_alive() and psutil.Process(process.pid).ppid() == os.getpid():
            os.kill(process.pid, signal.SIGINT)
    except (ProcessLookupError, psutil.NoSuchProcess):
        return  # it has just ended


@contextmanager
def _told_to_stop() -> Iterator[threading.Event]:
    """Set by SIGINT and SIGTERM. They are only watched from the main thread (signal(2))."""
    told = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield told
        return

    def tell(_number: int, _frame: FrameType | None) -> None:
        told.set()

    before = {number: signal.signal(number, tell) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _write_inputs(request: Request, scratch: Path) -> None:
    for name in ("inventory", "env"):
        (request.folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    (request.folder / "ansible.cfg").write_text(CONFIG.format(forks=FORKS, scratch=scratch), encoding="utf-8")
    (request.folder / "inventory/hosts.json").write_text(json.dumps(request.inventory, indent=1), encoding="utf-8")
    (request.folder / "env/extravars").write_text(json.dumps(request.variables, indent=1), encoding="utf-8")


def _search_path() -> str:
    """Ansible's own programs lie beside our interpreter; what an administrator needs may be in sbin."""
    return os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath), "/usr/sbin:/sbin"))


def require_programs(*, needs_ssh: bool, search_path: str = "") -> None:
    """Raises `OperatorError` that names what is not installed."""
    try:
        import ansible_runner  # noqa: F401
    except ImportError as error:
        raise OperatorError(f"ansible-runner cannot be loaded ({error}): `pip install ansible-runner`") from error
    path = search_path or _search_path()
    if shutil.which("ansible-playbook", path=path) is None:
        raise OperatorError(f"there is no ansible-playbook beside {sys.executable}: `pip install ansible-core`")
    if needs_ssh and shutil.which("ssh", path=path) is None:
        raise OperatorError("there is no ssh on this host: `apt install openssh-client`")
