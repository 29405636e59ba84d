"""llama.cpp as a peer of the benchmarks: built on request from PyPI's llama-cpp-python, run in turn with ours.

It is the release of LLAMA_CPP_PYTHON with its own default for this CPU (`GGML_NATIVE`), RPC switched on. The build
takes minutes, once; it lies in the state directory and is never made by a test.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from duckfleet.fleet import compose
from duckfleet.fleet.bench.small_fleet import kept_folder
from duckfleet.inventory.errors import MachineError, OperatorError

LLAMA_CPP_PYTHON = "0.3.36"
_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "OFF",
    "GGML_NATIVE": "ON",
    "GGML_RPC": "ON",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_SERVER": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
}
_BENCH, _RPC_SERVER = "llama-bench", "ggml-rpc-server"
_STEP = re.compile(r"^\[(\d+)/(\d+)\]")
_START_S = 10.0

Say = Callable[[str], None]


def say_on_stderr(text: str) -> None:
    """Progress, apart from the rows on stdout."""
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """The peer's programs."""

    folder: Path  # of llama-bench and ggml-rpc-server

    @staticmethod
    def ready(cache: Path, say: Say = say_on_stderr) -> LlamaCpp:
        """Built in `cache` if it is not yet.

        Raises `OperatorError` for tools that are missing, `MachineError` where a step fails, naming its log.
        """
        home = cache / f"llama-cpp-python-{LLAMA_CPP_PYTHON}"
        programs = home / "build" / "bin"
        if not (home / "built").is_file():
            for tool in ("cmake", "ninja", "c++"):
                if shutil.which(tool) is None:
                    raise OperatorError(f"--peer builds llama.cpp and needs {tool}: install it")
            home.mkdir(parents=True, exist_ok=True)
            _build(home, say)
            (home / "built").touch()
        return LlamaCpp(programs)

    def tokens_per_s(
        self, model: Path, *, threads: int, prompt: int = 0, generate: int = 0, rpc: Sequence[str] = ()
    ) -> float:
        """One llama-bench run after its own warm-up: prefill of `prompt` tokens, or decode of `generate`."""
        command = [str(self.folder / _BENCH), "-m", str(model), "-t", str(threads), "-r", "1", "-o", "jsonl"]
        command += ["-p", str(prompt), "-n", str(generate)]
        if rpc:
            command += ["-rpc", ",".join(rpc), "-ngl", "99"]
        # What our own run was told about threads (OMP_NUM_THREADS and the like) is not for the peer.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or len(rows) != 1:
            raise MachineError(f"llama-bench ended with {done.returncode}: {done.stderr.strip()[-400:]}")
        return float(rows[0]["avg_ts"])

    @contextlib.contextmanager
    def rpc_workers(self, count: int, threads: int) -> Iterator[tuple[str, ...]]:
        """So many RPC workers on loopback; gives their addresses and ends them."""
        workers: list[subprocess.Popen[bytes]] = []
        addresses = []
        try:
            for _ in range(count):
                port = _free_port()
                command = [str(self.folder / _RPC_SERVER), "-t", str(threads), "-H", "127.0.0.1", "-p", str(port)]
                workers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
                _await_port(port, workers[-1])
                addresses.append(f"127.0.0.1:{port}")
            yield tuple(addresses)
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.wait(10)


def _build(home: Path, say: Say) -> None:
    log = home / "build.log"
    source = home / "source"
    sdist = home / f"llama_cpp_python-{LLAMA_CPP_PYTHON}.tar.gz"
    if not sdist.is_file():
        say(f"fetching llama-cpp-python {LLAMA_CPP_PYTHON} (77 MB)")
        fetch = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "--dest", str(home)]
        _run([*fetch, f"llama-cpp-python=={LLAMA_CPP_PYTHON}"], log)
    if not source.is_dir():
        unpacked = home / "unpacked"
        with tarfile.open(sdist) as archive:
            archive.extractall(unpacked, filter="data")
        (unpacked / f"llama_cpp_python-{LLAMA_CPP_PYTHON}" / "vendor" / "llama.cpp").rename(source)
        shutil.rmtree(unpacked)
    say(f"building llama.cpp, once: some ten minutes of this machine's cores; log in {log}")
    settings = [f"-D{name}={value}" for name, value in _OPTIONS.items()]
    _run(["cmake", "-G", "Ninja", "-S", str(source), "-B", str(home / "build"), *settings], log)
    _run(["cmake", "--build", str(home / "build"), "--target", _BENCH, _RPC_SERVER], log, say)


def _run(command: Sequence[str], log: Path, say: Say | None = None) -> None:
    """A step of the build: its output goes to the log, every tenth of its progress is said."""
    said = -1
    with log.open("a", encoding="utf-8") as out:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            out.write(line)
            step = _STEP.match(line)
            if say is not None and step and int(step[1]) * 10 // int(step[2]) > said:
                said = int(step[1]) * 10 // int(step[2])
                say(f"  {step[1]} of {step[2]}")
        if process.wait():
            raise MachineError(f"{' '.join(command[:3])} … ended with {process.returncode}: see {log}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_port(port: int, worker: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        if worker.poll() is not None:
            raise MachineError(f"an RPC worker ended at once with {worker.returncode}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise MachineError(f"an RPC worker did not listen on port {port} within {_START_S:g} s")


def peer_of(model: str) -> tuple[LlamaCpp, Path]:
    """llama.cpp, and the Q8_0 of a model that the benchmarks have, both made once and kept."""
    kept = kept_folder()
    folder = kept.parent / "peer"
    llama = LlamaCpp.ready(folder)
    q8_0 = folder / f"{model}.Q8_0.gguf"
    if not q8_0.is_file():
        say_on_stderr(f"writing {q8_0.name}")
        compose.pull_model(kept / "models", model, None)
        compose.write_q8_0(kept / "models", model, q8_0)
    return llama, q8_0
