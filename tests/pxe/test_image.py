"""The duck image from Debian's real packages: what is in it, that nothing is missing, that it is reproducible."""

import gzip
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from duckfleet.inventory.errors import OperatorError
from duckfleet.pxe.image import cpio, layers, modules
from duckfleet.pxe.image.build import MAX_BASE_BYTES, build_image, default_cache
from duckfleet.pxe.image.cpio import Node
from duckfleet.pxe.image.debs import DebCache, unpack
from duckfleet.pxe.image.hardware import SUPPORTED_NICS
from duckfleet.pxe.image.images import ImageStore
from duckfleet.pxe.image.libraries import needed, with_libraries


def unpacked(store, image) -> dict[str, Node]:
    tree: dict[str, Node] = {}
    for layer in image.layers:
        tree.update(cpio.read(gzip.decompress(store.path(image, layer).read_bytes())))
    return tree


@pytest.fixture(scope="module")
def tree(image):
    return unpacked(*image)


@pytest.mark.parametrize("nic", SUPPORTED_NICS, ids=lambda nic: nic.name)
def test_each_supported_card_has_its_driver_and_firmware(nic, tree, kernel_tree):
    in_image = layers.kernel_modules(kernel_tree)
    by_name = {module.name: module for module in in_image}
    assert nic.module in modules.drivers_of(modules.pci_modalias(nic.vendor, nic.device), in_image)
    folder = f"usr/lib/modules/{layers.kernel_version(kernel_tree)}/"
    assert folder + by_name[nic.module].path in tree
    missing = [name for name in nic.firmware if f"usr/lib/firmware/{name}" not in tree]
    assert not missing
    assert set(nic.firmware) <= set(by_name[nic.module].firmware), "the driver no longer asks for this file"


def test_every_module_has_all_it_depends_on(kernel_tree):
    in_image = layers.kernel_modules(kernel_tree)
    names = {module.name for module in in_image}
    version = layers.kernel_version(kernel_tree)
    builtin = {
        modules.module_name(line)
        for line in kernel_tree[f"usr/lib/modules/{version}/modules.builtin"].data.decode().splitlines()
    }
    seen = set()
    for module in in_image:
        assert set(module.depends) - builtin <= seen, f"{module.name} would be loaded before what it needs"
        seen.add(module.name)
    assert {"r8169", "realtek", "igc", "virtio_net", "msr"} <= names


def test_modules_dep_lists_what_depmod_would(kernel_tree):
    text = layers.kernel_modules(kernel_tree)
    lines = dict(line.split(":") for line in modules.modules_dep(text).splitlines())
    (virtio_net,) = [path for path in lines if path.endswith("/virtio_net.ko")]
    assert {path.rpartition("/")[2] for path in lines[virtio_net].split()} == {
        "net_failover.ko", "failover.ko", "virtio.ko", "virtio_ring.ko",
    }  # fmt: skip
    assert lines[virtio_net].index("net_failover.ko") < lines[virtio_net].index("/failover.ko")


def test_every_program_finds_its_libraries(tree):
    present = {path.rpartition("/")[2] for path in tree} | {"/" + path for path in tree}
    for path, node in tree.items():
        for name in needed(node.data) if stat.S_ISREG(node.mode) and not path.endswith(".ko") else ():
            assert name.replace("/lib64/", "/usr/lib64/") in present, f"{path} needs {name}"


def test_the_base_is_small(image):
    _, made = image
    assert made.layers[0].name == "base.img"
    assert made.layers[0].num_bytes < MAX_BASE_BYTES
    assert not made.warnings


def test_layers_follow_each_other_without_a_gap(image):
    _, made = image
    assert all(layer.num_bytes % 4 == 0 for layer in made.layers)


def test_secrets_are_the_owners_only(image, tree):
    store, made = image
    assert stat.S_IMODE(tree["etc/duckfleet/enrolment"].mode) == 0o600
    assert stat.S_IMODE((store.directory / made.id).stat().st_mode) == 0o700
    assert stat.S_IMODE((store.directory / made.id / "site.img").stat().st_mode) == 0o600
    assert tree["etc/duckfleet/fleet.pub"].data == b"11" * 32 + b"\n"
    assert tree["root/.ssh/authorized_keys"].data == b"ssh-ed25519 AAAA fleet\n"
    assert b"22" * 32 not in (store.directory / made.id / "manifest.json").read_bytes()


def test_nobody_can_log_in_with_a_password(tree):
    assert tree["etc/shadow"].data.split(b":")[1] == b"*"
    assert b"-s" in tree["etc/duckfleet/start-ssh"].data.split()


def test_scripts_can_be_executed_and_parsed(tree):
    scripts = [path for path, node in tree.items() if node.data.startswith(b"#!")]
    assert {"init", "etc/duckfleet/network", "etc/duckfleet/on-lease"} <= set(scripts)
    assert all(tree[path].mode & 0o111 for path in scripts)


def test_the_same_inputs_give_the_same_bytes(tmp_path, image, image_inputs):
    store, made = image
    fresh_cache = tmp_path / "cache"
    fresh_cache.mkdir()
    (fresh_cache / "debs").symlink_to(default_cache() / "debs")  # the packages, but no layer made before
    again = ImageStore(tmp_path / "images")
    assert build_image(image_inputs, again, fresh_cache) == made
    for file in (made.kernel, *made.layers):
        assert again.path(made, file).read_bytes() == store.path(made, file).read_bytes(), file.name


def test_a_new_duckd_changes_its_layer_only(tmp_path, image, image_inputs):
    _, made = image
    other = tmp_path / "duckd"
    other.write_bytes(image_inputs.duckd.read_bytes() + b"another build")
    rebuilt = build_image(replace(image_inputs, duckd=other), ImageStore(tmp_path / "images"), default_cache())
    assert rebuilt.id != made.id
    assert rebuilt.kernel == made.kernel
    assert rebuilt.layers[0] == made.layers[0]
    assert rebuilt.layers[1] != made.layers[1]


def test_a_dynamic_duckd_is_refused(tmp_path, image_inputs):
    inputs = replace(image_inputs, duckd=Path("/bin/ls"))
    with pytest.raises(OperatorError, match="statically linked"):
        build_image(inputs, ImageStore(tmp_path), default_cache())


def test_the_python_layer_holds_a_whole_interpreter():
    debs = DebCache(default_cache() / "debs")
    pool: dict[str, Node] = {}
    for package in debs.fetch(debs.closure(layers.PYTHON_PACKAGES, layers.NOT_FOR_PYTHON)):
        pool.update(unpack(package, lambda path: True))
    tree = layers.python_tree(pool)
    (library,) = [path for path in tree if path.endswith("/json/__init__.py")]
    assert library.startswith("usr/lib/python3")
    extensions = [path for path in tree if "/lib-dynload/" in path and path.endswith(".so")]
    assert len(extensions) > 20
    with_libraries(extensions, tree)  # raises for what is not there
    assert stat.S_ISLNK(tree["usr/bin/python3"].mode)


def test_images_are_listed_newest_first_and_one_is_current(tmp_path, image):
    store, made = image
    assert store.current == made.id
    assert made.id in store.ids()
    assert store.load(made.id) == made
    with pytest.raises(OperatorError, match="image build"):
        ImageStore(tmp_path / "none").load("x")
    with pytest.raises(OperatorError, match=made.id):
        store.set_current("../../etc")
