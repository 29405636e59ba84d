// The panel layout: how packed weights lie in memory, and the view of one matrix that the kernels take.
//
// 16 output rows make a panel; 3 panels make a group (the last one or two groups have 2, so that none is left with 1; see
// group_width()); a group is one contiguous stream, in the order in
// which a kernel that has all its panels in flight reads it: blocks of 16 k, in them vectors of 32 bytes, k ascending,
// each vector once for every panel.
//
//     for each block of 16 k: for each vector of the block: for each panel of the group: 32 bytes
//
// In 16-bit units, unit 2i of a vector belongs to row i and unit 2i+1 to row i+8, so that masking the upper and shifting
// the lower half of each 32-bit lane gives rows 8..15 and 0..7 in order. The vectors of a panel's block:
//
//     f32   32: per k, rows 0..7, rows 8..15
//     bf16  16: per k, 16 units
//     e4m3   8: per two k, 16 units, low byte the even k
//     fp9    9: 16 units of signs S, then per two k (2v, 2v + 1) 16 units B of bodies, such that
//               (B         ^ S << 2v)       & 0x8FF0 = sign << 15 | body << 4 of k = 2v
//               (swapped B ^ S << (2v + 1)) & 0x8FF0 = the same of k = 2v + 1     (swapped: the bytes of each unit)
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

// 3 panels of 2 vectors are 6 chains of fma for one token and 12 for two: enough to hide the fma's latency, few enough
// to stay in registers, and both read the group as one stream.
inline constexpr std::uint32_t kGroupPanels = 3;
inline constexpr std::uint32_t kGroupScales = 4;  // room for a group's scales of one tile
inline constexpr std::uint32_t kVectorBytes = 32;

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
    const std::uint64_t num_groups = (std::uint64_t{num_panels} + kGroupPanels - 1) / kGroupPanels;
    return has_scales(format) ? num_groups * num_tiles * kGroupScales * sizeof(float) : 0;
  }
};

struct MatrixView {
  Format format = Format::kF32;
  const std::byte* blocks = nullptr;  // 32-byte aligned
  const float* scales = nullptr;      // [groups, num_tiles, kGroupScales], in the order of use; null: none
  std::uint32_t num_panels = 0;
  std::uint32_t num_blocks = 0;
  std::uint32_t first_tile_blocks = 0;
  std::uint32_t num_tiles = 0;

  static MatrixView of(Format format, const PanelShape& shape, const std::byte* blocks, const float* scales) noexcept {
    return {format, blocks, scales, shape.num_panels, shape.num_blocks, shape.first_tile_blocks, shape.num_tiles};
  }

  [[gnu::always_inline]] std::uint32_t num_groups() const noexcept { return (num_panels + kGroupPanels - 1) / kGroupPanels; }
  // Groups before the narrow ones.
  [[gnu::always_inline]] std::uint32_t full_groups() const noexcept {
    const std::uint32_t groups = num_groups(), missing = groups * kGroupPanels - num_panels;
    return groups < missing ? 0 : groups - missing;
  }
  [[gnu::always_inline]] std::uint32_t group_width(std::uint32_t group) const noexcept {
    return group < full_groups() ? kGroupPanels : num_panels == 1 ? 1 : kGroupPanels - 1;
  }
  // num_panels for the group after the last.
  [[gnu::always_inline]] std::uint32_t group_first_panel(std::uint32_t group) const noexcept {
    const std::uint32_t full = full_groups();
    const std::uint32_t first =
        group < full ? group * kGroupPanels : full * kGroupPanels + (group - full) * (kGroupPanels - 1);
    return first < num_panels ? first : num_panels;
  }
  [[gnu::always_inline]] std::uint32_t group_of(std::uint32_t panel) const noexcept {
    const std::uint32_t full = full_groups();
    return panel < full * kGroupPanels ? panel / kGroupPanels
                                       : full + (panel - full * kGroupPanels) / (kGroupPanels - 1);
  }
  // The first vector of panel `panel` in block `block`; its others follow at vector_stride(panel).
  [[gnu::always_inline]] const std::byte* block(std::uint32_t panel, std::uint32_t block) const noexcept {
    const std::uint32_t group = group_of(panel), first = group_first_panel(group);
    const std::uint64_t before = std::uint64_t{first} * num_blocks + std::uint64_t{block} * group_width(group);
    return blocks + before * block_bytes(format) + (panel - first) * kVectorBytes;
  }
  [[gnu::always_inline]] std::uint32_t vector_stride(std::uint32_t panel) const noexcept {
    return group_width(group_of(panel)) * kVectorBytes;
  }
  [[gnu::always_inline]] std::uint64_t scale_index(std::uint32_t panel, std::uint32_t tile) const noexcept {
    const std::uint32_t group = group_of(panel);
    return (std::uint64_t{group} * num_tiles + tile) * kGroupScales + (panel - group_first_panel(group));
  }
  [[gnu::always_inline]] const float* scale(std::uint32_t panel, std::uint32_t tile) const noexcept {
    return scales + scale_index(panel, tile);
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
