"""What the kernel tests share: each implementation by name, and random generators that start alike."""

from __future__ import annotations

import numpy as np
import pytest

from duckfleet.fp9_kernels import implementations, selected_implementation


@pytest.fixture(params=implementations())
def impl(request: pytest.FixtureRequest) -> str:
    """Every implementation this CPU can run; a test that asks for one gets that one or fails."""
    name: str = request.param
    assert selected_implementation(name) == name
    return name


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20_21)
