"""A wheel built from the clone installs and works without the clone."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CLONE = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", str(out), "."]
    subprocess.run(command, cwd=CLONE, check=True)
    (built,) = out.glob("duckfleet-*.whl")
    return built


def test_wheel_holds_the_daemon_the_modules_and_no_build_files(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "duckfleet/runtime/duckd/duckd" in names
    assert "duckfleet/__init__.py" not in names, "duckfleet is a namespace: its packages must not be shadowed"
    assert not [name for name in names if name.endswith((".cpp", ".hpp", "CMakeLists.txt"))]
    for package in ("fp9_kernels", "inventory", "pxe", "runtime", "fleet"):
        assert f"duckfleet/{package}/py.typed" in names
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in names)


def test_installed_wheel_works_without_the_clone(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "-q", "--target", str(target), str(wheel)]
    subprocess.run(command, check=True)
    environment = {**os.environ, "PYTHONPATH": str(target)}

    def python(code: str) -> str:
        run = subprocess.run(
            [sys.executable, "-c", code], cwd="/", env=environment, check=True, capture_output=True, text=True
        )
        return run.stdout.strip()

    where = python("import duckfleet.fp9_kernels as k; print(k.__file__); print(k.implementations())")
    assert where.startswith(str(target)), where
    daemon = python("from duckfleet.runtime.control import duckd_path; print(duckd_path())")
    assert daemon.startswith(str(target)), daemon
    version = subprocess.run([daemon, "--version"], cwd="/", check=True, capture_output=True, text=True)
    assert "duckd" in version.stdout
    assert "not a dynamic executable" in _ldd(daemon)
    assert "Usage" in python("import sys; sys.argv=['duckctl','--help']; from duckfleet.fleet.cli import main; main()")


def _ldd(path: str) -> str:
    run = subprocess.run(["ldd", path], capture_output=True, text=True)
    return run.stdout.replace("statically linked", "not a dynamic executable") + run.stderr
