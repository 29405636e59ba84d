"""Quick agreement of the implementations over formats; the thorough tests are beside this file."""

import numpy as np
import pytest
from duckfleet.fp9_kernels import FORMATS, PackedMatrix, implementations, quantize


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("rows", "cols", "num_tokens"), [(33, 200, 1), (100, 77, 7), (130, 300, 64)])
def test_implementations_agree_to_the_bit(format: str, rows: int, cols: int, num_tokens: int) -> None:
    rng = np.random.default_rng(1)
    packed = PackedMatrix.pack(quantize(rng.standard_normal((rows, cols)).astype(np.float32), format))
    x = rng.standard_normal((num_tokens, cols)).astype(np.float32)
    results = [packed.gemv(x, impl).tobytes() for impl in implementations()]
    assert len(set(results)) == 1
