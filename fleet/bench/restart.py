"""`duckctl bench restart`: from the start of a server to its first token, after the one before was killed.

A real model in two process ducks, whose weights stay where they are. Python's imports are not counted: the server's
process says when it has them. The first token is that of a streamed request, sent as soon as the server listens.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from duckfleet.fleet import compose
from duckfleet.fleet.announcement import Announcement, running_server
from duckfleet.fleet.bench.small_fleet import fleet_with
from duckfleet.fleet.context import FleetContext
from duckfleet.fleet.serving import ServeRequest, serve_model
from duckfleet.inventory.errors import MachineError

_START_S = 120.0


def rows(
    model: str = "smollm2-135m", ducks: int = 2, format: str = "e4m3", repeats: int = 3
) -> Iterator[Mapping[str, Any]]:
    """Row `first-token`, the median of `repeats` restarts after kill -9."""
    with fleet_with(model, ducks, 1, format) as fleet:
        times_s = [_start_and_kill(fleet) for _ in range(repeats + 1)]
    yield {"name": "first-token", "value": sorted(times_s[1:])[repeats // 2], "unit": "s, lower is better"}


def _start_and_kill(fleet: FleetContext) -> float:
    """Seconds from the imports' end to the first token; the server is killed then."""
    with (fleet.state_dir / "serve.log").open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "duckfleet.fleet.bench.restart", str(fleet.state_dir)],
            stdout=subprocess.PIPE,
            stderr=log,
        )
    try:
        assert child.stdout is not None
        begun_s = float(child.stdout.readline() or "nan")
        until_s = time.monotonic() + _START_S
        while (server := running_server(fleet.state_dir)) is None or server.pid != child.pid:
            if child.poll() is not None or time.monotonic() > until_s:
                raise MachineError(f"the server did not come up; see {fleet.state_dir / 'serve.log'}")
            time.sleep(0.005)
        _first_token(server)
        return time.monotonic() - begun_s
    finally:
        child.kill()
        child.wait()


def _first_token(server: Announcement) -> None:
    body = {
        "model": server.model,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 4,
        "temperature": 0,
        "stream": True,
    }
    request = urllib.request.Request(
        f"{server.url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    until_s = time.monotonic() + _START_S
    while True:
        try:
            answer = opener.open(request, timeout=_START_S)
            break
        except urllib.error.URLError as error:  # announced a moment before it answers
            if time.monotonic() > until_s:
                raise MachineError(f"{server.url} did not answer: {error}") from error
            time.sleep(0.005)
    with answer:
        for line in answer:
            if line.startswith(b"data: {"):
                delta = json.loads(line[6:])["choices"][0]["delta"]
                if delta.get("content"):
                    return
    raise MachineError("the stream ended without a token")


def _serve(state_dir: Path) -> None:
    """The child: everything is imported before the clock starts."""
    compose.import_server()
    print(time.monotonic(), flush=True)
    request = ServeRequest(port=0, ctx=512, num_threads=1)
    serve_model(FleetContext(state_dir), request, say=lambda text: print(text, file=sys.stderr, flush=True))


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
