"""The whole chain on this machine: a lab of ducks is woken, probed, given a model, asked, and taken down again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.control import strip_control_codes
from rich.rule import Rule
from rich.text import Text

from duckfleet.fleet import console
from duckfleet.fleet.announcement import Announcement, running_server
from duckfleet.fleet.context import FleetContext
from duckfleet.fleet.demo_report import (
    PARTS,
    Answer,
    DuckShare,
    FabricCounts,
    Report,
    WordWrap,
    compute_p50_us_of,
    make_report,
    weight_bytes_of,
)
from duckfleet.fleet.lab.ownership import LAB_VARIABLE, ProcessId, lab_marker
from duckfleet.fleet.lab.processes import lab_down
from duckfleet.fleet.reach import connect
from duckfleet.inventory.errors import MachineError

SERVER_TIMEOUT_S = 180.0
STEP_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class DemoRequest:
    """What to show."""

    model: str
    num_ducks: int
    question: str
    max_tokens: int
    format: str

    @property
    def ctx(self) -> int:
        """Tokens that question and answer take at most: no token is shorter than a byte, and a template adds some."""
        return len(self.question.encode()) + self.max_tokens + 128


class StepFailed(MachineError):
    """A command of the demo ended with something else than 0; it has said why itself."""

    def __init__(self, command: str, code: int) -> None:
        super().__init__(f"the demo stopped at `{command}` (exit code {code})")
        self.code = code


class Interrupted(BaseException):
    """SIGTERM or SIGHUP: end as ctrl-C does."""


def run_demo(
    state_dir: Path, request: DemoRequest, screen: Console, show: Callable[[Report], None] = lambda _report: None
) -> Report:
    """Run it on `screen`, `show` the report while everything is up, and leave no process behind however it ends.

    Models and chunks stay for the next time.

    Raises `StepFailed` with the failing command's exit code, `MachineError` when the answer fails.
    """
    fleet = FleetContext(state_dir)
    fleet.make_state_dir()
    with _signals_as_exceptions():
        lab_down(fleet.lab_dir)  # of a demo that was killed
        try:
            _prepare_fleet(screen, state_dir, request)
            with _server(screen, fleet, request.ctx) as server:
                report = _ask(screen, FleetContext(state_dir), server, request)
                show(report)
                return report
        finally:
            with _unstoppable():
                _step(screen, "take everything down", state_dir, ["lab", "down"])
                lab_down(fleet.lab_dir)


def _prepare_fleet(screen: Console, state_dir: Path, request: DemoRequest) -> None:
    _step(screen, "fetch the model", state_dir, ["model", "pull", request.model])
    _step(screen, "four boxes on a shelf, all off", state_dir, ["lab", "up", "--ducks", str(request.num_ducks)])
    _step(screen, "magic packets on the wire", state_dir, ["wake", "--wait"])
    _step(screen, "who are they, how fast do they read", state_dir, ["probe"])
    place = ["place", request.model, "--format", request.format]
    _step(screen, "each duck gets its share", state_dir, place)


def _step(screen: Console, why: str, state_dir: Path, arguments: Sequence[str]) -> None:
    shown = "duckctl " + " ".join(arguments)
    _headline(screen, shown, why)
    code = subprocess.run(_command(state_dir, arguments), stdout=screen.file, timeout=STEP_TIMEOUT_S).returncode
    if code != 0:
        raise StepFailed(shown, code)


def _headline(screen: Console, command: str, why: str) -> None:
    title = Text(command, "bold cyan") + Text(f"   {why}", "dim")
    screen.print()
    screen.print(Rule(title, align="left", style="dim"))


def _command(state_dir: Path, arguments: Sequence[str]) -> list[str]:
    site = state_dir / "lab" / "duckfleet.toml"
    options = ["--state", str(state_dir)] + (["--site", str(site)] if site.exists() else [])
    return [sys.executable, "-m", "duckfleet.fleet.cli", *options, *arguments]


@contextmanager
def _server(screen: Console, fleet: FleetContext, ctx: int) -> Iterator[Announcement]:
    """A `duckctl serve` of its own; ended with its context. It carries the lab's marker, so `lab down` finds it too."""
    _headline(screen, "duckctl serve --port 0", "the host takes attention, the ducks the rest")
    environment = {**os.environ, LAB_VARIABLE: lab_marker(fleet.lab_dir), "OMP_NUM_THREADS": "1"}
    command = _command(fleet.state_dir, ["serve", "--port", "0", "--ctx", str(ctx), "--threads", "1"])
    log = fleet.state_dir / "serve.log"
    with log.open("wb") as sink:
        child = subprocess.Popen(
            command, env=environment, stdout=sink, stderr=sink, stdin=subprocess.DEVNULL, process_group=0
        )
    process = ProcessId.of(child.pid)
    try:
        with console.err.status("loading what stays on this host"):
            announcement = _await_server(fleet.state_dir, child, log)
        screen.print(f"serving {announcement.model} at {announcement.url}")
        yield announcement
    finally:
        with _unstoppable():
            child.send_signal(signal.SIGINT)
            try:
                child.wait(10.0)
            except subprocess.TimeoutExpired:
                if process is not None:
                    process.end(grace_s=0.0)
                child.wait()


def _await_server(state_dir: Path, child: subprocess.Popen[bytes], log: Path) -> Announcement:
    until = time.monotonic() + SERVER_TIMEOUT_S
    while time.monotonic() < until:
        code = child.poll()
        if code is not None:
            console.err.print(log.read_text(errors="replace")[-4000:], markup=False, soft_wrap=True)
            raise StepFailed("duckctl serve", code if code > 0 else 1)
        found = running_server(state_dir)
        if found is not None and found.pid == child.pid:
            return found
        time.sleep(0.05)
    raise MachineError(f"the server did not come up in {SERVER_TIMEOUT_S:g} s; see {log}")


def _ask(screen: Console, fleet: FleetContext, server: Announcement, request: DemoRequest) -> Report:
    import httpx

    _headline(screen, f"POST {server.url}/v1/chat/completions", "streamed as it comes")
    screen.print(Text("❯ ", "bold cyan") + Text(request.question, "bold"), soft_wrap=True)
    with httpx.Client(base_url=server.url, timeout=120.0, trust_env=False) as client:
        try:
            before = FabricCounts.from_metrics(client.get("/metrics").text)
            read_before = _weight_bytes(fleet)
            answer = _stream(screen, client, server.model, request)
            after = FabricCounts.from_metrics(client.get("/metrics").text)
        except httpx.HTTPError as error:
            raise MachineError(f"the server at {server.url} did not answer: {error or type(error).__name__}") from error
    shares = []
    for duck in fleet.site.ducks:
        with connect(fleet.site, duck, fleet.keys) as control:
            stats = control.stats()
        read = weight_bytes_of(stats) - read_before.get(duck.name, 0)
        shares.append(DuckShare(duck.name, read, compute_p50_us_of(stats)))
    return make_report(answer, before, after, shares)


def _weight_bytes(fleet: FleetContext) -> dict[str, int]:
    found = {}
    for duck in fleet.site.ducks:
        with connect(fleet.site, duck, fleet.keys) as control:
            found[duck.name] = weight_bytes_of(control.stats())
    return found


def _stream(screen: Console, client: object, model: str, request: DemoRequest) -> Answer:
    import httpx

    assert isinstance(client, httpx.Client)
    body = {
        "model": model,
        "messages": [{"role": "user", "content": request.question}],
        "max_tokens": request.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    wrap = WordWrap(screen.width - 1)
    text, first_s, last_s, num_tokens = "", 0.0, 0.0, 0
    began = time.perf_counter()
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            raise MachineError(f"the server answered {response.status_code}: {response.read().decode()[:500]}")
        for line in response.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise MachineError(f"the answer broke off: {event['error'].get('message')}")
            piece = "".join(choice["delta"].get("content") or "" for choice in event.get("choices", []))
            if piece:
                last_s = time.perf_counter() - began
                first_s = first_s or last_s
                screen.print(wrap.feed(strip_control_codes(piece)), end="", markup=False, soft_wrap=True)
                text += piece
            num_tokens = (event.get("usage") or {}).get("completion_tokens", num_tokens)
    screen.print(wrap.flush(), markup=False, soft_wrap=True)
    return Answer(text, num_tokens, first_s, last_s)


def show(report: Report) -> None:
    """The tables."""
    answer = report.answer
    console.out.print()
    console.out.print(
        console.table(
            ("ttft", "tokens", "speed", *PARTS),
            [
                (
                    f"{1000 * answer.first_token_s:.0f} ms",
                    str(answer.num_tokens),
                    f"{answer.tokens_per_s:.1f} tok/s",
                    *(f"{report.part_us[part]:.1f} us" for part in PARTS),
                )
            ],
            title=f"the answer, and where the time of each of its {report.num_forwards} FFN forwards went",
            numeric=("ttft", "tokens", "speed", *PARTS),
        )
    )
    rows = [
        (
            share.duck,
            console.size(share.weight_bytes),
            f"{share.compute_p50_us:.0f} us",
            f"{share.last_share:.0%}",
            "slowest" if share.duck == report.slowest_duck else "",
        )
        for share in report.shares
    ]
    columns = ("duck", "weights read", "compute p50", "answered last", " ")
    console.out.print(console.table(columns, rows, numeric=columns[1:4]))


@contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind like ctrl-C, so that everything is taken down."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise Interrupted

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except Interrupted:
        raise KeyboardInterrupt from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _unstoppable() -> Iterator[None]:
    """What takes things down is short, and not to be cut off by an impatient second ctrl-C."""
    before = {
        number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
