"""Debian packages as a source of files: resolved and fetched by apt, unpacked by dpkg-deb, never installed."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import re
import stat
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from duckfleet.inventory.errors import OperatorError
from duckfleet.pxe.image.cpio import Node, symlink

_URI_LINE = re.compile(r"'(?P<uri>[^']+)' (?P<file>\S+) (?P<num_bytes>\d+) SHA256:(?P<sha256>[0-9a-f]{64})")
_MERGED = ("bin", "sbin", "lib", "lib64")  # Debian's merged /usr: /bin and so on are links into it


class PackagesUnavailable(OperatorError):
    """apt cannot provide what an image needs."""


@dataclass(frozen=True, slots=True)
class Package:
    """One package file in the cache."""

    name: str
    version: str
    sha256: str
    path: Path


class DebCache:
    """Package files by name under a directory, fetched when missing. Which versions: what this host's apt offers."""

    def __init__(self, directory: Path, say: Callable[[str], None] = lambda _: None) -> None:
        self.directory = directory
        self._say = say

    def kernel_package(self, meta: str = "linux-image-amd64") -> str:
        """The concrete kernel package behind a meta-package."""
        names = re.findall(r"^  Depends: (linux-image-\d\S*)$", _ask("apt-cache", "depends", meta), re.M)
        return str(names[0]) if names else meta

    def closure(self, names: Sequence[str], without: frozenset[str] = frozenset()) -> tuple[str, ...]:
        """`names` and everything they depend on, sorted, less `without` and what only those need."""
        options = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
        text = _ask("apt-cache", "depends", "--recurse", *(f"--no-{option}" for option in options), *names)
        depends: dict[str, list[str]] = {}
        for line in text.splitlines():
            if not line.startswith(" "):
                here = depends.setdefault(line, [])
            elif found := re.fullmatch(r" [ |](?:Pre)?Depends: ([a-z0-9][a-z0-9.+-]*)", line):
                here.append(found[1])
        done: dict[str, None] = {}
        pending = list(names)
        while pending:
            name = pending.pop()
            if name not in done:
                done[name] = None
                pending += [other for other in depends.get(name, ()) if other not in without]
        return tuple(sorted(done))

    def fetch(self, names: Sequence[str]) -> tuple[Package, ...]:
        """Package files of the newest versions, checked against the repository's SHA-256, in order of names."""
        return self._fetch(names, ())

    def fetch_firmware(self, name: str) -> Package:
        """A package of Debian's firmware section, which a host need not have among its own sources."""
        try:
            return self._fetch([name], ())[0]
        except PackagesUnavailable:
            return self._fetch([name], self._firmware_section())[0]

    def _fetch(self, names: Sequence[str], options: Sequence[str]) -> tuple[Package, ...]:
        self.directory.mkdir(parents=True, exist_ok=True)
        listing = _ask("apt-get", *options, "--print-uris", "download", *sorted(set(names)))
        offers = list(_URI_LINE.finditer(listing))
        missing = [o for o in offers if not _is_file_with(self.directory / o["file"], o["sha256"])]
        if missing:
            total = sum(int(offer["num_bytes"]) for offer in missing)
            self._say(f"fetching {len(missing)} Debian packages, {total / 1e6:.1f} MB")
            wanted = [_name_and_version(offer["file"]) for offer in missing]
            specs = [f"{name}={version}" for name, version in wanted]
            # apt drops to a user of its own for downloads, who may not write into our cache: stay who we are
            sandbox = ("-o", "APT::Sandbox::User=root") if os.geteuid() == 0 else ()
            _apt("apt-get", *options, *sandbox, "-q", "download", *specs, cwd=self.directory)
        packages = []
        for offer in sorted(offers, key=lambda offer: offer["file"]):
            path = self.directory / offer["file"]
            if not _is_file_with(path, offer["sha256"]):
                raise PackagesUnavailable(f"{path} is not the file that the repository lists; delete it and try again")
            packages.append(Package(*_name_and_version(offer["file"]), offer["sha256"], path))
        if len(packages) < len(set(names)):
            lacking = sorted(set(names) - {package.name for package in packages})
            raise PackagesUnavailable(f"apt offers no package {', '.join(lacking)}")
        return tuple(packages)

    def _firmware_section(self) -> tuple[str, ...]:
        """apt options under which only the firmware section of the host's own Debian mirror is known."""
        template = "$(SITE) $(CODENAME) $(LABEL) $(COMPONENT)"
        for line in _ask("apt-get", "indextargets", "--format", template, "Created-By: Packages").splitlines():
            words = line.split()
            if len(words) == 4 and words[2:] == ["Debian", "main"] and "-" not in words[1]:
                break
        else:
            raise PackagesUnavailable("no Debian mirror among this host's apt sources: firmware cannot be fetched")
        state = self.directory / "firmware-section"
        for folder in ("lists/partial", "cache/archives/partial"):
            (state / folder).mkdir(parents=True, exist_ok=True)
        keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
        text = f"deb [signed-by={keys}] {words[0]} {words[1]} non-free-firmware\n"
        (state / "firmware.list").write_text(text)
        options = (
            "-o", f"Dir::Etc::sourcelist={state}/firmware.list", "-o", "Dir::Etc::sourceparts=-",
            "-o", f"Dir::State::lists={state}/lists", "-o", f"Dir::Cache={state}/cache",
        )  # fmt: skip
        if not any((state / "lists").glob("*_Packages")):
            _apt("apt-get", *options, "-q", "update", cwd=state)
        return options


@functools.cache
def _ask(*command: str) -> str:
    """What apt knows, asked once a process; from a directory of no packages: it lists none that lie where it stands."""
    return _apt(*command, cwd=Path("/"))


def _apt(*command: str, cwd: Path) -> str:
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise PackagesUnavailable(f"{command[0]} is not here: images are built on a Debian host") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise PackagesUnavailable(f"{' '.join(command[:1])} failed: {last} (has `apt-get update` been run?)")
    return done.stdout


def _name_and_version(file_name: str) -> tuple[str, str]:
    name, version, _ = file_name.removesuffix(".deb").split("_")
    return name, version.replace("%3a", ":")


def _is_file_with(path: Path, sha256: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256


def merged_path(path: str) -> str:
    """A path of a package as it lies in a root with merged /usr, without a leading slash."""
    path = path.removeprefix(".").strip("/")
    return f"usr/{path}" if path.partition("/")[0] in _MERGED else path


def unpack(package: Package, wanted: Callable[[str], bool]) -> dict[str, Node]:
    """Files, links and directories of a package whose merged path is `wanted`."""
    command = ("dpkg-deb", "--fsys-tarfile", str(package.path))
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        raise PackagesUnavailable(f"{package.path.name} cannot be unpacked: {done.stderr.decode().strip()}")
    tree: dict[str, Node] = {}
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        for member in archive:
            path = merged_path(member.name)
            if not path or not wanted(path):
                continue
            if member.issym():
                tree[path] = symlink(member.linkname)
            elif member.islnk():
                tree[path] = tree[merged_path(member.linkname)]
            elif member.isfile():
                handle = archive.extractfile(member)
                tree[path] = Node(stat.S_IFREG | (member.mode & 0o755), handle.read() if handle else b"")
            elif member.isdir():
                tree[path] = Node(stat.S_IFDIR | 0o755)
    return tree
