"""The context benchmark: its rows, and the arithmetic that it holds the time against."""

import pytest

from duckfleet.inventory.errors import OperatorError
from duckfleet.runtime.bench.context import _CONFIG, multiplications, rows
from duckfleet.runtime.decoder import decoder_config


def test_rows_have_their_names_and_what_they_are_against():
    found = {row["name"]: row for row in rows(tokens=600, first=300)}
    assert list(found) == [
        "generate/ctx600",
        "decode/ctx300",
        "decode/ctx600",
        "decode/growth-to-ctx600",
        "memory/cache",
        "memory/growth-ctx300-600",
    ]
    assert found["decode/ctx300"]["ratio"] == 1.0
    assert all(row["against"] for name, row in found.items() if not name.startswith("generate"))


def test_too_short_a_context_is_refused():
    with pytest.raises(OperatorError, match="--tokens 1500"):
        list(rows(tokens=1500))


def test_past_the_chosen_positions_only_the_indexer_grows():
    config = decoder_config(_CONFIG)
    index_head = 16 * (64 + 1)
    assert multiplications(config, 4096) - multiplications(config, 2048) == 2 * 2048 * index_head
    dense = decoder_config({**_CONFIG, "index_topk": 1 << 20})
    assert multiplications(dense, 4096) - multiplications(dense, 2048) == 2 * 2048 * 4 * (2 * 320 + 32)
