"""A short soak with mutated traffic; `python -m tests.runtime.duckd.soak` runs the long one."""

from __future__ import annotations

from pathlib import Path

from tests.runtime.duckd.soak import soak


def test_short_soak(tmp_path: Path) -> None:
    result = soak(tmp_path, seed=20240702, datagrams=6000, messages=400)
    assert result.outcomes["answered"] > 0
    # The mutations reach what lies behind the tags as well as what lies before them.
    assert {"bad_magic", "bad_tag", "replayed", "bad_length", "foreign_address", "wrong_session"} <= set(result.drops)
    assert {"stale_step", "wrong_shape", "duplicate_fragment", "not_held"} <= set(result.drops)
