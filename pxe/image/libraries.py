"""Which shared libraries programs need: names from their own dynamic sections, files from a pool of packages."""

from __future__ import annotations

import io
import posixpath
import stat
from collections.abc import Mapping, Sequence

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from duckfleet.inventory.errors import OperatorError
from duckfleet.pxe.image.cpio import Node
from duckfleet.pxe.image.debs import merged_path


def needed(data: bytes) -> tuple[str, ...]:
    """Loader path and library names an ELF file asks for; nothing for a static program or another file."""
    if data[:4] != b"\x7fELF":
        return ()
    try:
        elf = ELFFile(io.BytesIO(data))
        interpreter = elf.get_section_by_name(".interp")
        names = [interpreter.data().rstrip(b"\0").decode()] if interpreter else []
        dynamic = elf.get_section_by_name(".dynamic")
        if isinstance(dynamic, DynamicSection):
            names += [tag.needed for tag in dynamic.iter_tags("DT_NEEDED")]
        return tuple(names)
    except ELFError as error:
        raise OperatorError(f"a program of the image is a broken ELF file: {error}") from error


def with_libraries(programs: Sequence[str], pool: Mapping[str, Node]) -> dict[str, Node]:
    """The programs (paths in `pool`) and every library they need, links followed.

    Raises `OperatorError` naming what is missing from the pool.
    """
    by_name: dict[str, str] = {}
    for path in sorted(pool):
        by_name.setdefault(posixpath.basename(path), path)
    tree: dict[str, Node] = {}
    pending = [(program, "the image") for program in programs]
    while pending:
        path, needed_by = pending.pop()
        if path not in pool:
            raise OperatorError(f"{path}, needed by {needed_by}, is in none of the packages that were fetched")
        if path in tree:
            continue
        node = tree[path] = pool[path]
        if stat.S_ISLNK(node.mode):
            target = node.data.decode()
            place = target if target.startswith("/") else posixpath.join(posixpath.dirname(path), target)
            pending.append((merged_path(posixpath.normpath(place)), path))
            continue
        for name in needed(node.data):
            place = merged_path(name) if name.startswith("/") else by_name.get(name, name)
            pending.append((place, path))
    return tree
