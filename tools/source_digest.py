"""Prints a digest of every file that ends up in an installation, so that set-up knows when to build again."""

import hashlib
import os
import pathlib

FOLDERS = ("fp9_kernels", "inventory", "pxe", "runtime", "fleet", "playbooks")
TOP_LEVEL = ("CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE")

digest = hashlib.sha256()
paths = [pathlib.Path(name) for name in TOP_LEVEL]
for folder in FOLDERS:
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        paths += [pathlib.Path(root) / name for name in sorted(names) if not name.endswith(".pyc")]
for path in paths:
    digest.update(f"{path} {path.stat().st_size}\n".encode())
    digest.update(path.read_bytes())
print(digest.hexdigest())
