"""Kernel modules: what each says about itself, which others it needs, and the indices that modprobe reads.

A module's `.modinfo` section is NUL-separated `key=value` text (Linux, include/linux/module.h). Debian's packages
carry no `modules.dep`; `depmod` would make it on the machine that installs them, and nobody does here.
"""

from __future__ import annotations

import fnmatch
import io
import lzma
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from duckfleet.inventory.errors import OperatorError


@dataclass(frozen=True, slots=True)
class Module:
    """A kernel module: canonical name (underscores), its path below `lib/modules/VERSION/`, its `.modinfo`."""

    name: str
    path: str
    data: bytes
    aliases: tuple[str, ...]
    depends: tuple[str, ...]
    softdep_pre: tuple[str, ...]
    firmware: tuple[str, ...]


def canonical_name(name: str) -> str:
    return name.replace("-", "_")


def module_name(path: str) -> str | None:
    """The canonical name of a module file, or None if the path is not one."""
    base = path.rpartition("/")[2]
    for suffix in (".ko", ".ko.xz"):
        if base.endswith(suffix):
            return canonical_name(base.removesuffix(suffix))
    return None


def parse_module(path: str, data: bytes) -> Module:
    """A module from its file; one packed with xz is unpacked (busybox cannot do that on the duck)."""
    if path.endswith(".xz"):
        path, data = path.removesuffix(".xz"), lzma.decompress(data)
    try:
        section = ELFFile(io.BytesIO(data)).get_section_by_name(".modinfo")
    except ELFError as error:
        raise OperatorError(f"{path} is not a kernel module: {error}") from error
    info: dict[str, list[str]] = {}
    for entry in (section.data() if section else b"").split(b"\0"):
        key, separator, value = entry.decode("latin-1").partition("=")
        if separator:
            info.setdefault(key, []).append(value)
    depends = [canonical_name(name) for value in info.get("depends", []) for name in value.split(",") if name]
    return Module(
        name=module_name(path) or path,
        path=path,
        data=data,
        aliases=tuple(info.get("alias", [])),
        depends=tuple(depends),
        softdep_pre=tuple(_softdep_pre(info.get("softdep", []))),
        firmware=tuple(info.get("firmware", [])),
    )


def _softdep_pre(lines: Iterable[str]) -> list[str]:
    """`pre: a b post: c` -> [a, b]."""
    names: list[str] = []
    for line in lines:
        wanted = False
        for word in line.split():
            if word.endswith(":"):
                wanted = word == "pre:"
            elif wanted:
                names.append(canonical_name(word))
    return names


def closure(wanted: Sequence[str], pool: Mapping[str, Module], builtin: frozenset[str]) -> tuple[Module, ...]:
    """`wanted` and everything they need, dependencies first. Raises `OperatorError` for what the kernel has not."""
    done: dict[str, Module] = {}

    def visit(name: str, needed_by: str) -> None:
        if name in done or name in builtin:
            return
        if name not in pool:
            raise OperatorError(f"this kernel has no module {name} ({needed_by}): choose another kernel package")
        for other in (*pool[name].depends, *pool[name].softdep_pre):
            visit(other, f"needed by {name}")
        done[name] = pool[name]

    for name in wanted:
        visit(canonical_name(name), "a driver of the duck image")
    return tuple(done.values())


def modules_dep(modules: Sequence[Module]) -> str:
    """Text of `modules.dep`: a module and all that must be loaded before it, nearest first."""
    by_name = {module.name: module for module in modules}

    def needed(module: Module) -> list[str]:
        paths: list[str] = []
        for name in (*module.softdep_pre, *module.depends):
            if name in by_name:
                for path in (by_name[name].path, *needed(by_name[name])):
                    if path in paths:
                        paths.remove(path)
                    paths.append(path)
        return paths

    return "".join(f"{m.path}: {' '.join(needed(m))}".rstrip() + "\n" for m in sorted(modules, key=lambda m: m.path))


def modules_alias(modules: Sequence[Module]) -> str:
    """Text of `modules.alias`, in the order of module names."""
    lines = [f"alias {alias} {m.name}\n" for m in sorted(modules, key=lambda m: m.name) for alias in m.aliases]
    return "".join(lines)


def pci_modalias(vendor: int, device: int) -> str:
    """What the kernel calls a network card of these ids (Linux, drivers/pci/pci-sysfs.c, modalias_show)."""
    return f"pci:v{vendor:08X}d{device:08X}sv00000000sd00000000bc02sc00i00"


def drivers_of(modalias: str, modules: Iterable[Module]) -> tuple[str, ...]:
    """Names of the modules that claim this device."""
    return tuple(m.name for m in modules if any(fnmatch.fnmatchcase(modalias, alias) for alias in m.aliases))
