"""Logical chunks on the host's disk: one file a chunk, named by its digest."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from duckfleet.inventory.file_lock import held_alone
from duckfleet.inventory.plan import Chunk, ShardPlan

from .errors import BadCheckpoint, NoSpace
from .progress import Progress, silent

_READ_BYTES = 4 << 20


class ChunkWriter:
    """Writes one chunk piece by piece and names it when it is whole. A writer given up leaves nothing behind."""

    def __init__(self, store: ChunkStore, number: int) -> None:
        self._store = store
        self._partial = store.partial / str(number)
        self._file = self._partial.open("wb")
        self._hash = hashlib.blake2b(digest_size=32)
        self.num_bytes = 0

    def write(self, piece: bytes) -> None:
        self._file.write(piece)
        self._hash.update(piece)
        self.num_bytes += len(piece)

    def finish(self) -> str:
        """On the disk, whole and under its digest, before this returns it."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        digest = self._hash.hexdigest()
        self._partial.replace(self._store.path(digest))
        return digest

    def abandon(self) -> None:
        self._file.close()
        self._partial.unlink(missing_ok=True)


class ChunkStore:
    """`root/<digest>`; plans lie in `root/plans`, chunks being written in `root/partial`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.partial = root / "partial"
        self.plans = root / "plans"

    @contextmanager
    def alone(self, progress: Progress) -> Iterator[None]:
        """Nobody else prepares into this store meanwhile; waits for whoever does. `plans` must be there."""
        what = "wait for another preparation to end"
        with held_alone(self.plans, lambda: progress(what, 0, None)):
            yield

    def path(self, digest: str) -> Path:
        return self.root / digest

    def read(self, chunk: Chunk) -> bytes:
        """The bytes of a chunk of a prepared plan. Raises `BadCheckpoint` where the file is not here or not whole."""
        try:
            data = self.path(chunk.digest).read_bytes()
        except OSError as e:
            raise BadCheckpoint(f"{_label(chunk)} is not in {self.root}: prepare the model again ({e})") from e
        if len(data) != chunk.num_bytes:
            raise BadCheckpoint(
                f"{_label(chunk)} has {len(data)} bytes, not {chunk.num_bytes}: prepare the model again"
            )
        return data

    def has(self, digest: str, num_bytes: int) -> bool:
        """Whether a file of that name and length is here (its content is not looked at)."""
        try:
            return self.path(digest).stat().st_size == num_bytes
        except OSError:
            return False

    def is_sound(self, digest: str) -> bool:
        """Whether the file's content is what its name says."""
        h = hashlib.blake2b(digest_size=32)
        try:
            with self.path(digest).open("rb") as f:
                while block := f.read(_READ_BYTES):
                    h.update(block)
        except OSError:
            return False
        return h.hexdigest() == digest

    def verify(self, plan: ShardPlan, progress: Progress = silent) -> list[Chunk]:
        """Chunks of the plan that are missing or damaged; damaged files are deleted."""
        total = sum(c.num_bytes for c in plan.chunks)
        bad, done = [], 0
        for chunk in plan.chunks:
            if not self.is_sound(chunk.digest):
                self.path(chunk.digest).unlink(missing_ok=True)
                bad.append(chunk)
            done += chunk.num_bytes
            progress("verify", done, total)
        return bad

    def remove_unused(self, keep: Iterable[ShardPlan]) -> int:
        """Delete chunk files that no plan of `keep` names; returns the bytes freed."""
        wanted = {c.digest for plan in keep for c in plan.chunks}
        freed = 0
        for file in self.root.iterdir():
            if file.is_file() and len(file.name) == 64 and file.name not in wanted:
                freed += file.stat().st_size
                file.unlink()
        return freed

    def begin(self, num_bytes: int, num_spare_bytes: int) -> None:
        """Make the folders, drop what an interrupted run left half written, and see that `num_bytes` more will fit.

        Raises `NoSpace`; `num_spare_bytes` must stay free besides.
        """
        for folder in (self.root, self.plans):
            folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self.partial, ignore_errors=True)
        self.partial.mkdir()
        free = shutil.disk_usage(self.root).free
        if free < num_bytes + num_spare_bytes:
            raise NoSpace(
                f"{self.root} has {free / 2**30:.2f} GiB free, the model's chunks need "
                f"{(num_bytes + num_spare_bytes) / 2**30:.2f} GiB more: free some, or choose another state directory"
            )


def _label(chunk: Chunk) -> str:
    return f"chunk {chunk.digest[:12]} (layer {chunk.layer}, slice {chunk.slice}, part {chunk.part})"
