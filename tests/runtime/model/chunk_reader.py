"""Reads logical chunks as docs/formats.md describes them; shares no code with what writes them."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import torch

E4M3 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32).numpy()


@dataclass
class ReadSection:
    expert: int
    col0: int
    gate: np.ndarray
    up: np.ndarray
    down: np.ndarray


def read_chunk(data: bytes):
    """(format id, layer, slice, part, hidden, intermediate, [ReadSection with f32 matrices])"""
    magic, version, fmt, zero, layer, hidden, count, slice_, part, intermediate = struct.unpack_from(
        "<4sHBBIIIHHI", data
    )
    assert (magic, version, zero) == (b"DFCK", 1, 0) and not any(data[28:64])
    at, sections = 64, []
    for _ in range(count):
        expert, col0, cols, zero = struct.unpack_from("<IIII", data, at)
        assert zero == 0
        at += 16
        shapes = [(cols, hidden), (cols, hidden), (hidden, cols)]
        matrices = []
        for rows, width in shapes:
            n = rows * width
            if fmt == 0:
                codes, size = np.frombuffer(data, "<f4", n, at), 4 * n
            elif fmt == 1:
                codes, size = (np.frombuffer(data, "<u2", n, at).astype(np.uint32) << 16).view(np.float32), 2 * n
            elif fmt == 2:
                codes, size = E4M3[np.frombuffer(data, np.uint8, n, at)], n
            else:
                body = np.frombuffer(data, np.uint8, n, at).astype(np.uint16)
                signs = np.unpackbits(np.frombuffer(data, np.uint8, n // 8, at + n), bitorder="little")
                codes, size = (
                    (signs.astype(np.uint16) << 15 | body << 7).view(np.float16).astype(np.float32),
                    n + n // 8,
                )
            matrices.append(codes.reshape(rows, width))
            at += size
        if fmt >= 2:
            tile_cols = (col0 + cols + 127) // 128 - col0 // 128
            tile_hidden = (hidden + 127) // 128
            in_tile = (col0 + np.arange(cols)) // 128 - col0 // 128
            of_hidden = np.arange(hidden) // 128
            for i in range(3):
                shape = (tile_hidden, tile_cols) if i == 2 else (tile_cols, tile_hidden)
                scale = np.frombuffer(data, "<f4", shape[0] * shape[1], at).reshape(shape)
                at += scale.nbytes
                grid = np.ix_(of_hidden, in_tile) if i == 2 else np.ix_(in_tile, of_hidden)
                matrices[i] = matrices[i] * scale[grid]
        sections.append(ReadSection(expert, col0, *matrices))
    assert at == len(data)
    return fmt, layer, slice_, part, hidden, intermediate, sections
