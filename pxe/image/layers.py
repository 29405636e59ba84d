"""The layers of a duck's initramfs, each a pure function from packages, files and keys to archive bytes.

The kernel unpacks archives that follow one another into one tree, so that a new `duckd` is a new small layer and
not a new image. A layer's length is a multiple of four: EFI firmware loads them with nothing in between.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable

from duckfleet.inventory.errors import OperatorError
from duckfleet.pxe.image import cpio, modules
from duckfleet.pxe.image.cpio import Node
from duckfleet.pxe.image.hardware import NETWORK_MODULES, PROBE_MODULES
from duckfleet.pxe.image.libraries import needed, with_libraries
from duckfleet.pxe.image.modules import Module

PROGRAM_PACKAGES = ("busybox-static", "dropbear-bin", "ethtool", "dmidecode")
PROGRAMS = (
    "usr/bin/busybox",
    "usr/sbin/dropbear",
    "usr/bin/dropbearkey",
    "usr/sbin/ethtool",
    "usr/sbin/dmidecode",
)
PYTHON_PACKAGES = ("python3",)
# Pulled in by Debian's packaging (maintainer scripts, Kerberos in NIS, menus), not by the interpreter.
NOT_FOR_PYTHON = frozenset(
    ("perl", "perl-base", "dpkg", "tar", "install-info", "readline-common", "media-types", "mime-support", "mailcap")
)
_LEFT_OUT = ("usr/share/doc/", "usr/share/man/", "usr/share/locale/", "usr/share/lintian/", "usr/share/info/")
_KERNEL_FOLDER = "usr/lib/modules/"
_FIRMWARE_FOLDER = "usr/lib/firmware/"


def compress(archive: bytes) -> bytes:
    """gzip without a name or time, padded to a multiple of four (the kernel skips zeros between archives)."""
    packed = gzip.compress(archive, compresslevel=9, mtime=0)
    return packed + bytes(-len(packed) % 4)


def root_files() -> dict[str, Node]:
    """Our own part of the root: /init and what lies in the package's `root` folder."""
    tree: dict[str, Node] = {}

    def walk(folder: Traversable, prefix: str) -> None:
        for entry in folder.iterdir():
            path = f"{prefix}{entry.name}"
            if entry.is_dir():
                walk(entry, f"{path}/")
                continue
            data = entry.read_bytes()
            mode = 0o755 if data.startswith(b"#!") else 0o600 if path == "etc/shadow" else 0o644
            tree[path] = cpio.file(data, mode)

    walk(resources.files("duckfleet.pxe.image") / "root", "")
    return tree


def kernel_version(kernel: Mapping[str, Node]) -> str:
    """The version a kernel package holds modules for."""
    versions = {path.removeprefix(_KERNEL_FOLDER).partition("/")[0] for path in kernel if _is_module(path)}
    if len(versions) != 1:
        raise OperatorError(f"the kernel package holds modules of {sorted(versions) or 'no kernel'}; one is needed")
    return versions.pop()


def _is_module(path: str) -> bool:
    return path.startswith(_KERNEL_FOLDER) and modules.module_name(path) is not None


def kernel_modules(kernel: Mapping[str, Node]) -> tuple[Module, ...]:
    """The modules an image needs, with all that those need. Probe modules that this kernel lacks are left out."""
    folder = f"{_KERNEL_FOLDER}{kernel_version(kernel)}/"
    builtin_list = kernel.get(f"{folder}modules.builtin", Node(0)).data.decode()
    builtin = frozenset(name for line in builtin_list.splitlines() if (name := modules.module_name(line)))
    files = {modules.module_name(path): path for path in kernel if _is_module(path)}
    pool = _LazyPool({str(name): path for name, path in files.items()}, folder, kernel)
    probe = [name for name in PROBE_MODULES if name in pool]
    return modules.closure([*NETWORK_MODULES, *probe], pool, builtin)


class _LazyPool(dict[str, Module]):
    """Every module of a kernel by name, parsed when asked for: there are thousands and an image needs thirty."""

    def __init__(self, paths: Mapping[str, str], folder: str, kernel: Mapping[str, Node]) -> None:
        super().__init__()
        self._paths = paths
        self._folder = folder
        self._kernel = kernel

    def __contains__(self, name: object) -> bool:
        return name in self._paths

    def __missing__(self, name: str) -> Module:
        path = self._paths[name]
        module = modules.parse_module(path.removeprefix(self._folder), self._kernel[path].data)
        self[name] = module
        return module


def base_tree(kernel: Mapping[str, Node], programs: Mapping[str, Node], firmware: Mapping[str, Node]) -> cpio.Tree:
    """What every duck has: our root files, programs with their libraries, modules and the firmware those name."""
    folder = f"{_KERNEL_FOLDER}{kernel_version(kernel)}/"
    chosen = kernel_modules(kernel)
    tree: dict[str, Node] = {
        "bin": cpio.symlink("usr/bin"),
        "sbin": cpio.symlink("usr/sbin"),
        "lib": cpio.symlink("usr/lib"),
        "lib64": cpio.symlink("usr/lib64"),
        "usr/bin/sh": cpio.symlink("busybox"),
        # The kernel opens the console for the first process before that one could mount anything.
        "dev/console": cpio.character_device(5, 1),
        **root_files(),
        **with_libraries(PROGRAMS, programs),
    }
    for module in chosen:
        tree[folder + module.path] = cpio.file(module.data)
    tree[folder + "modules.dep"] = cpio.file(modules.modules_dep(chosen).encode())
    tree[folder + "modules.alias"] = cpio.file(modules.modules_alias(chosen).encode())
    tree[folder + "modules.symbols"] = cpio.file(b"")
    for name in sorted({name for module in chosen for name in module.firmware}):
        if (path := _FIRMWARE_FOLDER + name) in firmware:
            tree[path] = firmware[path]
    return tree


def duckd_tree(duckd: bytes) -> cpio.Tree:
    """The layer that changes with each release of duckd. Raises `OperatorError` unless it is a static program."""
    if needed(duckd) or duckd[:4] != b"\x7fELF":
        raise OperatorError("duckd for the image must be a statically linked x86-64 program")
    return {"usr/bin/duckd": cpio.file(duckd, 0o755)}


def site_tree(image_id: str, fleet_key: bytes, enrolment: bytes, ssh_keys: Sequence[str]) -> cpio.Tree:
    """The layer of one fleet: its public key, the enrolment secret, who may log in."""
    authorized = "".join(f"{key.strip()}\n" for key in ssh_keys)
    return {
        "etc/duckfleet/image-id": cpio.file(f"{image_id}\n".encode()),
        "etc/duckfleet/fleet.pub": cpio.file(fleet_key),
        "etc/duckfleet/enrolment": cpio.file(enrolment, 0o600),
        "root": cpio.directory(0o700),
        "root/.ssh": cpio.directory(0o700),
        "root/.ssh/authorized_keys": cpio.file(authorized.encode(), 0o600),
    }


def python_tree(packages: Mapping[str, Node]) -> cpio.Tree:
    """The second layer: an interpreter for Ansible's modules, without documentation and tests."""

    def kept(path: str) -> bool:
        return not path.startswith(_LEFT_OUT) and "/test/" not in path and not path.startswith("etc/")

    tree = {path: node for path, node in packages.items() if kept(path)}
    needs = [path for path, node in tree.items() if needed(node.data)]
    with_libraries([path for path in needs if path.startswith("usr/bin/")], tree)
    return tree
