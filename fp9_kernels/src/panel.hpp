// The panel layout: how packed weights lie in memory, and the view of one matrix that the kernels take.
//
// 16 output rows make a panel; 3 panels make a group (the last one or two groups have 2, so that none is left with 1; see
// group_width()); a group is one contiguous stream, in the order in which a kernel that has all its panels in flight reads
// it: blocks of 16 k, in them vectors of 32 bytes, k ascending, each vector once for every panel.
//
//     for each block of 16 k: for each vector of the block: for each panel of the group: 32 bytes
//
// Groups lie one after another, for caches' prefetchers like nothing better than to go straight on. A product with one
// token reads two of them at once, best group g and g + half: with two streams more of the lines ahead are under way.
// Filling after groups and before the second half keeps the two from falling upon the same sets of the first cache.
//
// In 16-bit units, unit 2i of a vector belongs to row i and unit 2i+1 to row i+8, so that masking the upper and shifting
// the lower half of each 32-bit lane gives rows 8..15 and 0..7 in order. A read that begins 2 bytes early does that shift
// for nothing, one that begins a byte early moves each lower byte up: kernels read up to 2 bytes before a matrix, and
// mask away what they find. The vectors of a panel's block:
//
//     f32   32: per k, rows 0..7, rows 8..15
//     bf16  16: per k, 16 units
//     e4m3   8: per two k, 16 units, low byte the even k
//     fp9    9: 16 units of signs S, then per two k (2v, 2v + 1) 16 units B such that
//               B                      & 0x8FF0 = sign << 15 | body << 4 of k = 2v
//               (swapped B ^ S << v)   & 0x8FF0 = the same of k = 2v + 1        (swapped: the bytes of each unit)
//
// The first is one masked read. Of the second, 7 bits lie where the first has none, and the two that meet the first's
// (15 and 7) are mended by S, whose bits 15 - v and 7 - v are for that. S is not masked before it is XORed in; what its
// other bits do is undone when packing.
//
// Rows before and after the matrix's own, to fill panels, and columns to fill blocks have the code zero; kernels are
// given -0.0 for the activations of filling columns: fma(+0, -0.0, acc) is acc for every acc.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format.hpp"

namespace duckfleet::kernels {

// Two groups of 3 panels for one token, and one group for two tokens, are 12 chains of fma: enough to hide the fma's
// latency and to catch up after a wait for memory, few enough to stay in registers.
inline constexpr std::uint32_t kGroupPanels = 3;
inline constexpr std::uint32_t kGroupScales = 4;  // room for a group's scales of one tile
inline constexpr std::uint32_t kVectorBytes = 32;
inline constexpr std::uint32_t kLeadBytes = 64;  // readable before a packed matrix; kernels read 2 of them

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

[[gnu::always_inline]] constexpr std::uint32_t groups_of(std::uint32_t num_panels) noexcept {
  return (num_panels + kGroupPanels - 1) / kGroupPanels;
}

// Groups of 3 panels; they come before the narrow ones.
[[gnu::always_inline]] constexpr std::uint32_t full_groups_of(std::uint32_t num_panels) noexcept {
  const std::uint32_t groups = groups_of(num_panels), missing = groups * kGroupPanels - num_panels;
  return groups < missing ? 0 : groups - missing;
}

// `bytes`, or a little more, such that what lies there and what lies that far from it can be read side by side.
[[gnu::always_inline]] constexpr std::uint64_t spread_bytes(std::uint64_t bytes) noexcept {
  constexpr std::uint64_t kPage = 4096, kApart = 192;
  const std::uint64_t past = bytes % kPage;
  if (bytes == 0 || (past >= kApart && past <= kPage - kApart)) return bytes;
  return bytes + (past < kApart ? kApart - past : kPage + kApart - past);
}

// From a group of 3 panels to the next.
[[gnu::always_inline]] constexpr std::uint64_t group_stride(Format format, std::uint32_t num_blocks) noexcept {
  return spread_bytes(std::uint64_t{kGroupPanels} * num_blocks * block_bytes(format));
}

// Where the second half of the groups of 3 panels begins.
[[gnu::always_inline]] constexpr std::uint64_t second_half_begin(Format format, std::uint32_t num_blocks,
                                                                 std::uint32_t num_panels) noexcept {
  return spread_bytes(full_groups_of(num_panels) / 2 * group_stride(format, num_blocks));
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
    const std::uint32_t full = full_groups_of(num_panels), second = full - full / 2;
    return second_half_begin(format, num_blocks, num_panels) + second * group_stride(format, num_blocks) +
           std::uint64_t{num_panels - full * kGroupPanels} * num_blocks * block_bytes(format);
  }
  std::uint64_t scale_bytes(Format format) const noexcept {
    return has_scales(format) ? std::uint64_t{groups_of(num_panels)} * num_tiles * kGroupScales * sizeof(float) : 0;
  }
};

struct MatrixView {
  Format format = Format::kF32;
  const std::byte* blocks = nullptr;  // 32-byte aligned, after kLeadBytes of anything
  const float* scales = nullptr;      // [groups, num_tiles, kGroupScales], in the order of use; null: none
  std::uint32_t num_panels = 0;
  std::uint32_t num_blocks = 0;
  std::uint32_t first_tile_blocks = 0;
  std::uint32_t num_tiles = 0;

  static MatrixView of(Format format, const PanelShape& shape, const std::byte* blocks, const float* scales) noexcept {
    return {format, blocks, scales, shape.num_panels, shape.num_blocks, shape.first_tile_blocks, shape.num_tiles};
  }

  [[gnu::always_inline]] std::uint32_t num_groups() const noexcept { return groups_of(num_panels); }
  [[gnu::always_inline]] std::uint32_t full_groups() const noexcept { return full_groups_of(num_panels); }
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
  // Half of the full groups: group g and g + half_groups() are best read side by side, for g < half_groups().
  [[gnu::always_inline]] std::uint32_t half_groups() const noexcept { return full_groups() / 2; }
  [[gnu::always_inline]] const std::byte* group_blocks(std::uint32_t group) const noexcept {
    const std::uint64_t stride = group_stride(format, num_blocks);
    const std::uint32_t full = full_groups(), half = full / 2;
    if (group < half) return blocks + group * stride;
    const std::uint32_t wide = group < full ? group : full;
    return blocks + second_half_begin(format, num_blocks, num_panels) + (wide - half) * stride +
           std::uint64_t{group_first_panel(group) - wide * kGroupPanels} * num_blocks * block_bytes(format);
  }
  // The first vector of panel `panel` in block `block`; its others follow at vector_stride(panel).
  [[gnu::always_inline]] const std::byte* block(std::uint32_t panel, std::uint32_t block) const noexcept {
    const std::uint32_t group = group_of(panel);
    return group_blocks(group) + std::uint64_t{block} * group_width(group) * block_bytes(format) +
           (panel - group_first_panel(group)) * kVectorBytes;
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
