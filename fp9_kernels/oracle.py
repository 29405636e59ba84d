"""The slow oracle: numpy only, written from docs/formats.md, sharing no code with the kernels.

`*_exact` follows the canonical order with correctly rounded f32 operations and must equal the kernels to the bit;
`*_f64` sums in float64 in whatever order and comes with a bound derived from the number of operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from duckfleet.fp9_kernels.quantized import Quantized

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

EPSILON = 2.0**-24  # unit roundoff of f32
TILE = 128


def decode_e4m3(code: int) -> float:
    """OCP 8-bit floating point specification 1.0, E4M3: bias 7, no infinities, S.1111.111 is a NaN."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = (code >> 3) & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return float("nan")
    return sign * (mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


def decode_fp9(code: int) -> float:
    """Bit 8 sign, bits 7..3 exponent with bias 15, bits 2..0 mantissa; exponent 31 is not a number here."""
    sign = -1.0 if code & 0x100 else 1.0
    exponent, mantissa = (code >> 3) & 31, code & 7
    if exponent == 31:
        return float("nan")
    return sign * (mantissa / 8 * 2.0**-14 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 15))


E4M3 = np.array([decode_e4m3(code) for code in range(256)])  # [256] f64
FP9 = np.array([decode_fp9(code) for code in range(512)])  # [512] f64


def code_values(q: Quantized) -> F64:
    """What each code is worth without its scale, [N, K] f64 (exact)."""
    if q.format == "f32":
        return q.codes.astype(np.float64)
    if q.format == "bf16":
        return (q.codes.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    if q.format == "e4m3":
        codes, table = q.codes.astype(np.int64), E4M3
    else:
        assert q.signs is not None
        codes, table = q.codes.astype(np.int64) + 256 * q.signs.astype(np.int64), FP9
    values: F64 = table[codes]
    return values


def scale_values(q: Quantized) -> F64:
    """The scale of each weight, [N, K] f64."""
    if q.scales is None:
        return np.ones(q.shape)
    rows = [(q.row0 + r) // TILE - q.row0 // TILE for r in range(q.shape[0])]
    cols = [(q.col0 + c) // TILE - q.col0 // TILE for c in range(q.shape[1])]
    return q.scales.astype(np.float64)[rows][:, cols]


# ---- correctly rounded f32 -------------------------------------------------------------------------------------


def fma32(a: npt.ArrayLike, b: npt.ArrayLike, c: npt.ArrayLike) -> F32:
    """round_f32(a * b + c) of f32 values, one rounding.

    The product is exact in f64; its sum with c is rounded to odd (Boldo and Melquiond, "Emulation of FMA and correctly
    rounded sums", 2008), after which rounding to f32 is the only one that counts.
    """
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    c64 = np.asarray(c, np.float64)
    product, c64 = np.broadcast_arrays(product, c64)
    total = product + c64
    back = total - product
    error = (product - (total - back)) + (c64 - back)
    bits = total.view(np.int64).copy()
    inexact_even = (error != 0) & ((bits & 1) == 0) & np.isfinite(total)
    toward_zero = (error > 0) != (total > 0)
    bits[inexact_even & toward_zero] -= 1
    bits[inexact_even & ~toward_zero] += 1
    result: F32 = bits.view(np.float64).astype(np.float32)
    return result


def matvec_exact(q: Quantized, x: F32, total: F32 | None = None) -> F32:
    """Canonical sum of x [M, K] with every row of q: [M, N] f32. Continues `total` where one is given."""
    weights = code_values(q)
    rows, cols = q.shape
    out: F32 = np.zeros((x.shape[0], rows), np.float32) if total is None else total.copy()
    scales = scale_values(q)
    start = 0
    while start < cols:
        end = min(cols, start + TILE - (q.col0 + start) % TILE)
        acc: F32 = np.zeros_like(out)
        for k in range(start, end):
            acc = fma32(weights[None, :, k], x[:, k, None], acc)
        out = fma32(acc, scales[None, :, start], out)
        start = end
    return out


_P = [np.float32(1) / np.float32(n) for n in (5040, 720, 120, 24, 6, 2)]


def silu_exact(g: F32) -> F32:
    """The order of operations of fp9_kernels/src/silu.hpp."""
    one = np.float32(1)
    with np.errstate(over="ignore", invalid="ignore"):
        t = np.minimum(np.maximum(-g, np.float32(-87)), np.float32(88))
        n = fma32(t, np.float32(float.fromhex("0x1.715476p+0")), np.float32(12582912)) - np.float32(12582912)
        r = fma32(n, np.float32(-float.fromhex("0x1.62e4p-1")), t)
        r = fma32(n, np.float32(-float.fromhex("0x1.7f7d1cp-20")), r)
        p = np.full_like(r, _P[0])
        for coefficient in _P[1:]:
            p = fma32(p, r, coefficient)
        p = fma32(p, r, one)
        p = fma32(p, r, one)
        e = (p * np.exp2(n.astype(np.float64)).astype(np.float32)).astype(np.float32)
        result: F32 = g / (one + e)
    return result


@dataclass(frozen=True, slots=True, eq=False)
class ExpertPiece:
    """The columns of one expert that a part holds: gate, up [num_cols, hidden], down [hidden, num_cols]."""

    gate: Quantized
    up: Quantized
    down: Quantized


def ffn_exact(experts: dict[int, ExpertPiece], x: F32, routes: Sequence[Sequence[tuple[int, float]]]) -> F32:
    """Canonical FFN of a part: x [M, hidden], routes of each token -> [M, hidden] f32."""
    out: F32 = np.zeros_like(x)
    for token, token_routes in enumerate(routes):
        total = out[token : token + 1]
        for expert, weight in sorted(token_routes):
            piece = experts.get(expert)
            if piece is None:
                continue
            gate = matvec_exact(piece.gate, x[token : token + 1])
            up = matvec_exact(piece.up, x[token : token + 1])
            h = (silu_exact(gate) * up).astype(np.float32) * np.float32(weight)
            total = matvec_exact(piece.down, h, total)
        out[token] = total[0]
    return out


# ---- float64 with bounds ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """A float64 result and how far an f32 result may lie from it, element by element."""

    value: F64
    bound: F64


def gamma(num_roundings: int) -> float:
    """Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., lemma 3.1."""
    return num_roundings * EPSILON / (1 - num_roundings * EPSILON)


def matvec_f64(q: Quantized, x: F32 | F64, x_error: F64 | float = 0.0) -> Bounded:
    """x [M, K] times q; the bound is gamma(K + tiles) * sum |w x| for x as given, and sum |w| x_error on top.

    Each product passes through at most K - 1 roundings of its chain, one for the scale and one for each later tile.
    """
    weights = code_values(q) * scale_values(q)
    cols = q.shape[1]
    roundings = cols + (q.col0 + cols + TILE - 1) // TILE - q.col0 // TILE + 1
    x64 = np.asarray(x, np.float64)
    error = np.broadcast_to(np.asarray(x_error, np.float64), x64.shape)
    magnitude = (np.abs(x64) + error) @ np.abs(weights).T
    smallest = np.float64(2.0**-149) * cols  # roundings on f32's subnormal grid
    return Bounded(x64 @ weights.T, gamma(roundings) * magnitude + error @ np.abs(weights).T + smallest)


def silu_f64(g: F64) -> F64:
    with np.errstate(over="ignore"):
        result: F64 = g / (1 + np.exp(-g))
    return result


def ffn_f64(experts: dict[int, ExpertPiece], x: F32, routes: Sequence[Sequence[tuple[int, float]]]) -> Bounded:
    """The FFN of a part in float64; errors of gate and up are carried through silu (slope at most 1.1) and down.

    exp's polynomial, 1 + e, the division and two products make at most 8 roundings of relative size EPSILON.
    """
    value, bound = np.zeros(x.shape), np.zeros(x.shape)
    for token, token_routes in enumerate(routes):
        held = [(experts[expert], weight) for expert, weight in sorted(token_routes) if expert in experts]
        later_cols = sum(piece.down.shape[1] for piece, _ in held)
        for piece, weight in held:
            one = x[token : token + 1]
            gate, up = matvec_f64(piece.gate, one), matvec_f64(piece.up, one)
            w = abs(float(np.float32(weight)))
            h = silu_f64(gate.value) * up.value * float(np.float32(weight))
            h_error = w * (
                1.1 * gate.bound * (np.abs(up.value) + up.bound) + np.abs(silu_f64(gate.value)) * up.bound
            ) + 8 * EPSILON * np.abs(h)
            h_error += 2.0**-126  # silu's clamp below -88, and subnormal results
            part = matvec_f64(piece.down, h, h_error)
            value[token] += part.value[0]
            # The running total passes through the roundings of the experts that follow.
            weights = np.abs(code_values(piece.down) * scale_values(piece.down))
            magnitude = (np.abs(h) + h_error) @ weights.T
            bound[token] += part.bound[0] + gamma(later_cols + 8 * len(held)) * magnitude[0]
    return Bounded(value, bound)
