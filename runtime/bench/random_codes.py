"""Random e4m3 codes as often each as in trained weights.

Evenly drawn ones are subnormal in one case of 18, not one of ten thousand. Sums with subnormal numbers take many a
processor a hundred times as long: a benchmark over such weights measures that.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from duckfleet.fp9_kernels import quantize

_TABLE_LEN = 1 << 16


def random_codes(random: np.random.Generator, rows: int, cols: int) -> npt.NDArray[np.uint8]:
    """uint8 [rows, cols], finite all: normally distributed weights, rounded by tiles of 128 x 128."""
    weights = random.standard_normal((128, _TABLE_LEN // 128), np.float32)
    table: npt.NDArray[np.uint8] = np.asarray(quantize(weights, "e4m3").codes).reshape(-1)
    return table[random.integers(0, _TABLE_LEN, (rows, cols), dtype=np.uint16)]
