"""A pond for tests of reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fleet.report.pond import Pond


@pytest.fixture
def pond(tmp_path: Path) -> Pond:
    state = tmp_path / "state"
    state.mkdir()
    return Pond(state)
