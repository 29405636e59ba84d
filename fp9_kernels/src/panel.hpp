// The panel layout: how packed weights lie in memory, and the view of one matrix that the kernels take.
//
// 16 output rows make a panel; up to 4 panels make a group; a group is one contiguous stream of blocks, k outermost:
//
//     for each block of 16 k: for each panel of the group: one block of 16 k x 16 rows
//
// Inside a block, vectors of 32 bytes, k ascending. In 16-bit units unit 2i belongs to row i and unit 2i+1 to row i+8,
// so that masking the upper and shifting the lower half of each 32-bit lane gives rows 8..15 and 0..7 in order:
//
//     f32   per k: rows 0..7, rows 8..15 (64 bytes)
//     bf16  per k: 16 units
//     e4m3  per two k: 16 units, low byte the even k
//     fp9   16 units of signs S, then per two k (2v, 2v + 1) 16 units B of bodies, such that
//             (B         ^ S << 2v)       & 0x8FF0 = sign << 15 | body << 4 of k = 2v
//             (swapped B ^ S << (2v + 1)) & 0x8FF0 = the same of k = 2v + 1       (swapped: the bytes of each unit)
//
// Sign bits are not masked before they are XORed in; what the other 15 bits of a shifted S do to the bodies is undone
// when packing. That saves two of nine instructions for 32 weights. S is found from bit 0 upward: bits 15 - 2v and
// 14 - 2v depend on bodies, signs and lower bits of S only.
//
// Rows before and after the matrix's own, to fill panels, and columns to fill blocks have the code zero; kernels are
// given -0.0 for the activations of filling columns: fma(+0, -0.0, acc) is acc for every acc.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format.hpp"

namespace duckfleet::kernels {

inline constexpr std::uint32_t kGroupPanels = 4;

// Functions that a file compiled for an instruction set calls are always inlined: no copy of them may be shared.
[[gnu::always_inline]] constexpr std::uint64_t block_bytes(Format format) noexcept {
  switch (format) {
    case Format::kF32: return 1024;
    case Format::kBf16: return 512;
    case Format::kE4m3: return 256;
    case Format::kFp9: return 288;
  }
  return 0;
}

// Where the rows and columns of a packed matrix lie in panels, blocks and tiles. `row0` and `col0` are its place in the
// whole matrix, from which tiles are counted.
struct PanelShape {
  std::uint32_t num_rows = 0;
  std::uint32_t num_cols = 0;
  std::uint32_t row_lead = 0;           // filling rows before row 0, < 16
  std::uint32_t col_lead = 0;           // filling columns before column 0, < 16
  std::uint32_t num_panels = 0;
  std::uint32_t num_blocks = 0;         // of each panel
  std::uint32_t first_tile_blocks = 0;  // blocks before the first border between tiles along k, 1..8
  std::uint32_t num_tiles = 0;          // tiles along k

  static PanelShape of(std::uint32_t row0, std::uint32_t num_rows, std::uint32_t col0, std::uint32_t num_cols) noexcept {
    PanelShape shape;
    shape.num_rows = num_rows;
    shape.num_cols = num_cols;
    shape.row_lead = num_rows == 0 ? 0 : row0 % kPanelRows;
    shape.col_lead = num_cols == 0 ? 0 : col0 % kBlockK;
    shape.num_panels = num_rows == 0 ? 0 : (shape.row_lead + num_rows + kPanelRows - 1) / kPanelRows;
    shape.num_blocks = num_cols == 0 ? 0 : (shape.col_lead + num_cols + kBlockK - 1) / kBlockK;
    shape.first_tile_blocks = kTile / kBlockK - (col0 % kTile) / kBlockK;
    shape.num_tiles = tiles_touched(col0, num_cols);
    return shape;
  }

  std::uint32_t padded_cols() const noexcept { return num_blocks * kBlockK; }
  std::uint64_t stream_bytes(Format format) const noexcept {
    return std::uint64_t{num_panels} * num_blocks * block_bytes(format);
  }
  std::uint64_t scale_bytes(Format format) const noexcept {
    return has_scales(format) ? std::uint64_t{num_panels} * num_tiles * sizeof(float) : 0;
  }
};

struct MatrixView {
  Format format = Format::kF32;
  const std::byte* blocks = nullptr;  // 32-byte aligned
  const float* scales = nullptr;      // [num_panels, num_tiles]; null for f32 and bf16
  std::uint32_t num_panels = 0;
  std::uint32_t num_blocks = 0;
  std::uint32_t first_tile_blocks = 0;
  std::uint32_t num_tiles = 0;

  static MatrixView of(Format format, const PanelShape& shape, const std::byte* blocks, const float* scales) noexcept {
    return {format, blocks, scales, shape.num_panels, shape.num_blocks, shape.first_tile_blocks, shape.num_tiles};
  }

  [[gnu::always_inline]] std::uint32_t group_width(std::uint32_t group) const noexcept {
    const std::uint32_t left = num_panels - group * kGroupPanels;
    return left < kGroupPanels ? left : kGroupPanels;
  }
  // The block of panel `panel` at block index `block`.
  [[gnu::always_inline]] const std::byte* block(std::uint32_t panel, std::uint32_t block) const noexcept {
    const std::uint32_t group = panel / kGroupPanels;
    const std::uint64_t before = std::uint64_t{group} * kGroupPanels * num_blocks;
    return blocks + (before + std::uint64_t{block} * group_width(group) + panel % kGroupPanels) * block_bytes(format);
  }
  // Tile `tile` along k holds the blocks [tile_begin(tile), tile_begin(tile + 1)).
  [[gnu::always_inline]] std::uint32_t tile_begin(std::uint32_t tile) const noexcept {
    if (tile == 0) return 0;
    const std::uint32_t begin = first_tile_blocks + (tile - 1) * (kTile / kBlockK);
    return begin < num_blocks ? begin : num_blocks;
  }
};

// The row (0..15) of unit or lane `unit` of a vector of 16-bit units.
[[gnu::always_inline]] constexpr std::uint32_t unit_row(std::uint32_t unit) noexcept { return unit / 2 + 8 * (unit % 2); }

}  // namespace duckfleet::kernels
