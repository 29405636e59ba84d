"""What a preparation has finished, line by line, so that it can go on after a kill at any point."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import TextIO


class Journal:
    """Appended to as work is finished; a last line cut short counts as never written."""

    def __init__(self, file: Path, key: str) -> None:
        self._file = file
        self.chunks: dict[int, str] = {}  # index in the plan -> digest
        self.tensors: dict[str, str] = {}  # name -> digest of its stored bytes
        self._read(key)
        self._out: TextIO = file.open("w", encoding="utf-8")
        self._write({"key": key})
        for index, digest in self.chunks.items():
            self._write({"chunk": index, "digest": digest})
        for name, digest in self.tensors.items():
            self._write({"tensor": name, "digest": digest})
        self._out.flush()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._out.close()

    def add_chunk(self, index: int, digest: str) -> None:
        self.chunks[index] = digest
        self._write({"chunk": index, "digest": digest})
        self._out.flush()

    def add_tensor(self, name: str, digest: str) -> None:
        self.tensors[name] = digest
        self._write({"tensor": name, "digest": digest})

    def remove(self) -> None:
        self._out.close()
        self._file.unlink(missing_ok=True)

    def _read(self, key: str) -> None:
        try:
            lines = self._file.read_text(encoding="utf-8").splitlines()
        except OSError:
            return
        for i, line in enumerate(lines):
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if i == 0 and entry != {"key": key}:
                return  # of other files, or another plan
            if "chunk" in entry:
                self.chunks[int(entry["chunk"])] = str(entry["digest"])
            elif "tensor" in entry:
                self.tensors[str(entry["tensor"])] = str(entry["digest"])

    def _write(self, entry: dict[str, object]) -> None:
        self._out.write(json.dumps(entry, separators=(",", ":")) + "\n")
