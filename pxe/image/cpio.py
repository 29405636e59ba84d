"""cpio archives in the "new ASCII" format that the kernel unpacks as initramfs, the same bytes for the same tree.

Source of the layout: Linux, Documentation/driver-api/early-userspace/buffer-format.rst.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

MAGIC = b"070701"
TRAILER = "TRAILER!!!"
HEADER_LEN = 110  # magic and 13 fields of 8 hex digits
MAX_FILE_BYTES = 0xFFFFFFFF
MAX_NAME_LEN = 4096  # PATH_MAX, which is where the kernel stops


class CpioError(ValueError):
    """Bytes that are no newc archive, or a tree that cannot be written as one."""


@dataclass(frozen=True, slots=True)
class Node:
    """One file system object. `mode` holds type and permissions, as in `st_mode`."""

    mode: int
    data: bytes = b""  # content of a file, target of a symbolic link
    device: tuple[int, int] = (0, 0)  # major, minor of a device node


def file(data: bytes, mode: int = 0o644) -> Node:
    return Node(stat.S_IFREG | mode, data)


def directory(mode: int = 0o755) -> Node:
    return Node(stat.S_IFDIR | mode)


def symlink(target: str) -> Node:
    return Node(stat.S_IFLNK | 0o777, target.encode())


def character_device(major: int, minor: int, mode: int = 0o600) -> Node:
    return Node(stat.S_IFCHR | mode, device=(major, minor))


Tree = Mapping[str, Node]  # path without a leading slash -> node


def with_parents(tree: Tree) -> dict[str, Node]:
    """The tree with every missing parent directory added (the kernel makes none by itself)."""
    full = dict(tree)
    for path in tree:
        parent = path
        while "/" in parent:
            parent = parent.rpartition("/")[0]
            node = full.setdefault(parent, directory())
            if not stat.S_ISDIR(node.mode):
                raise CpioError(f"{path} lies below {parent}, which is not a directory")
    return full


def write(tree: Tree) -> bytes:
    """An archive of `tree`: sorted by path (parents come first), owner 0:0, every time 0, inodes counted from 1."""
    out = bytearray()
    full = with_parents(tree)
    for inode, path in enumerate(sorted(full), start=1):
        if path.startswith("/") or path in ("", ".", TRAILER) or ".." in path.split("/"):
            raise CpioError(f"{path!r} cannot be a path in an archive")
        _append(out, path, full[path], inode)
    _append(out, TRAILER, Node(0), 0)
    out += bytes(-len(out) % 512)
    return bytes(out)


def _append(out: bytearray, path: str, node: Node, inode: int) -> None:
    name = path.encode() + b"\0"
    if len(node.data) > MAX_FILE_BYTES or len(name) > MAX_NAME_LEN:
        raise CpioError(f"{path[:80]!r} is too large for this format")
    num_links = 2 if stat.S_ISDIR(node.mode) else 1
    major, minor = node.device
    fields = (inode, node.mode, 0, 0, num_links, 0, len(node.data), 0, 0, major, minor, len(name), 0)
    out += MAGIC + b"".join(b"%08x" % field for field in fields)
    for part in (name, node.data):
        out += part
        out += bytes(-len(out) % 4)


def read(archive: bytes) -> dict[str, Node]:
    """The tree of one archive. Raises `CpioError` on anything that is not one."""
    return dict(_members(archive))


def _members(archive: bytes) -> Iterator[tuple[str, Node]]:
    offset = 0
    while True:
        header = archive[offset : offset + HEADER_LEN]
        if len(header) < HEADER_LEN or header[:6] != MAGIC:
            raise CpioError(f"no newc header at byte {offset}")
        try:
            fields = [int(header[6 + 8 * i : 14 + 8 * i], 16) for i in range(13)]
        except ValueError as error:
            raise CpioError(f"a field of the header at byte {offset} is not hexadecimal") from error
        _, mode, _, _, _, _, file_bytes, _, _, major, minor, name_len, _ = fields
        name_at = offset + HEADER_LEN
        data_at = name_at + name_len + -(name_at + name_len) % 4
        end = data_at + file_bytes
        if not 1 <= name_len <= MAX_NAME_LEN or end > len(archive):
            raise CpioError(f"the member at byte {offset} is longer than the archive")
        path = archive[name_at : name_at + name_len - 1].decode()
        if path == TRAILER:
            return
        yield path, Node(mode, archive[data_at:end], (major, minor))
        offset = end + -end % 4
