"""Rows of `duckctl bench kernels`: each kernel against the machine's own limit, interleaved in one run."""

from __future__ import annotations

import os
from collections.abc import Iterator

from duckfleet.fp9_kernels import _kernels
from duckfleet.fp9_kernels.packed import tune_prefetch

MIB = 1 << 20


def rows(rounds: int = 75) -> Iterator[dict[str, str | float]]:
    """Each row as it is measured: name, value, unit, ratio, against. Rows of what this machine lacks are left out."""
    threads = [t for t in (1, 2) if t <= (os.cpu_count() or 1)]
    usable = _kernels.implementations()
    # One distance for all rows: that of as many threads as a duck of this machine would have.
    yield {"name": f"prefetch/T{threads[-1]}", "value": tune_prefetch(threads[-1]) / 1024, "unit": "KB ahead"}
    for format in ("f32", "bf16", "e4m3", "fp9"):
        for impl in ("scalar", "avx2"):
            for num_tokens in (1, 2):
                for t in threads:
                    if impl not in usable:
                        continue
                    slow = impl == "scalar"
                    value, limit, ratio, _, how = _kernels.measure(
                        False, impl, format, num_tokens, t, 5 if slow else rounds, MIB if slow else 4 * MIB
                    )
                    yield {
                        "name": f"gemv/{format}/{impl}/M{num_tokens}/T{t}",
                        "value": round(value / 1e9, 2),
                        "unit": "GB/s",
                        "ratio": round(ratio, 3),
                        "against": f"read limit, same run ({limit / 1e9:.1f} GB/s, {how})",
                    }
    for format in ("e4m3", "fp9"):
        for num_tokens in (12, 48, 96):
            for t in threads:
                if "avx2" not in usable:
                    continue
                value, limit, ratio, _, how = _kernels.measure(True, "avx2", format, num_tokens, t, rounds, 4 * MIB)
                yield {
                    "name": f"gemm/{format}/avx2/M{num_tokens}/T{t}",
                    "value": round(value / 1e9, 2),
                    "unit": "GFLOP/s",
                    "ratio": round(ratio, 3),
                    "against": f"FMA peak, same run ({limit / 1e9:.1f} GFLOP/s, {how})",
                }
