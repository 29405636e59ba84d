"""The diagnosis is pure: no clock, chance, network, process, file or database comes near it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import duckfleet.fleet.diagnosis as package

ROOT = Path(package.__file__).parent
FORBIDDEN = {
    *("socket", "subprocess", "time", "random", "secrets", "os", "pathlib", "threading", "asyncio", "io", "shutil"),
    *("paramiko", "sqlalchemy", "scapy", "requests", "httpx", "typer", "rich"),
}


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_module_imports_no_effects(path: Path) -> None:
    tree = ast.parse(path.read_text())
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    imported = set()
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    assert not {name for name in imported if name.split(".")[0] in FORBIDDEN}
    assert not {name for name in imported if name.startswith("duckfleet.inventory.store")}


def test_no_function_reads_the_clock() -> None:
    for path in ROOT.rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)]
        assert not {node.attr for node in calls} & {"utcnow", "today"}, path
