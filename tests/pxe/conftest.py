"""An image of Debian's real kernel and programs, built once a session; packages come from the cache or from apt."""

import subprocess
from pathlib import Path

import pytest

from duckfleet.pxe.image import build
from duckfleet.pxe.image.build import ImageInputs
from duckfleet.pxe.image.debs import DebCache, unpack
from duckfleet.pxe.image.images import ImageStore

STAND_IN = """
#include <stdio.h>
#include <unistd.h>
int main(void) { puts("ready"); fflush(stdout); for (;;) pause(); }
"""


@pytest.fixture(scope="session")
def stand_in_duckd(tmp_path_factory) -> Path:
    """A static program that says "ready" like duckd does."""
    folder = tmp_path_factory.mktemp("duckd")
    (folder / "main.c").write_text(STAND_IN)
    subprocess.run(["cc", "-O1", "-static", "-o", folder / "duckd", folder / "main.c"], check=True)
    return folder / "duckd"


@pytest.fixture(scope="session")
def image_inputs(tmp_path_factory, stand_in_duckd) -> ImageInputs:
    keys = tmp_path_factory.mktemp("keys")
    (keys / "fleet.pub").write_text("11" * 32 + "\n")
    (keys / "enrolment.secret").write_text("22" * 32 + "\n")
    return ImageInputs(stand_in_duckd, keys / "fleet.pub", keys / "enrolment.secret", ("ssh-ed25519 AAAA fleet",))


@pytest.fixture(scope="session")
def image(tmp_path_factory, image_inputs):
    """(store, image)"""
    store = ImageStore(tmp_path_factory.mktemp("images"))
    return store, build.build_image(image_inputs, store, build.default_cache())


@pytest.fixture(scope="session")
def kernel_tree():
    """The files of the kernel package that images use."""
    debs = DebCache(build.default_cache() / "debs")
    (package,) = debs.fetch([debs.kernel_package()])
    return unpack(package, lambda path: path.startswith(("boot/vmlinuz", "usr/lib/modules/")))
