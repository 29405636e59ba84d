"""Prints the requirements of the build, the product and its tests, read from pyproject.toml."""

import pathlib
import tomllib

project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())
wanted = [
    *project["build-system"]["requires"],
    "cmake>=3.25",
    "ninja>=1.11",
    *project["project"]["dependencies"],
    *project["project"]["optional-dependencies"]["dev"],
]
print("\n".join(wanted))
