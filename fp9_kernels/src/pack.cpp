#include "pack.hpp"

#include <algorithm>
#include <cstring>

namespace duckfleet::kernels {
namespace {

template <Format F>
std::uint32_t code_at(const CodeMatrix& source, std::uint64_t i) noexcept {
  if constexpr (F == Format::kF32) {
    std::uint32_t bits;
    std::memcpy(&bits, source.codes + i * 4, 4);
    return bits;
  } else if constexpr (F == Format::kBf16) {
    std::uint16_t bits;
    std::memcpy(&bits, source.codes + i * 2, 2);
    return bits;
  } else if constexpr (F == Format::kE4m3) {
    return static_cast<std::uint32_t>(source.codes[i]);
  } else {
    const auto sign = (static_cast<std::uint32_t>(source.signs[i / 8]) >> (i % 8)) & 1;
    return sign << 8 | static_cast<std::uint32_t>(source.codes[i]);
  }
}

template <Format F>
bool is_finite(std::uint32_t code) noexcept {
  switch (F) {
    case Format::kF32: return (code & 0x7F800000) != 0x7F800000;
    case Format::kBf16: return (code & 0x7F80) != 0x7F80;
    case Format::kE4m3: return !is_nan_e4m3(code);
    case Format::kFp9: return !is_nan_fp9(code);
  }
}

// Writes one block from its codes [row][k]; `stride` is from a vector to the next.
template <Format F>
void encode_block(const std::uint32_t (&codes)[kPanelRows][kBlockK], std::byte* block, std::uint32_t stride) noexcept {
  for (std::uint32_t unit = 0; unit < kPanelRows; ++unit) {
    const std::uint32_t row = unit_row(unit);
    const std::uint32_t* in = codes[row];
    if constexpr (F == Format::kF32) {
      for (std::uint32_t k = 0; k < kBlockK; ++k)
        std::memcpy(block + std::uint64_t{2 * k + row / 8} * stride + row % 8 * 4, &in[k], 4);
    } else if constexpr (F == Format::kBf16) {
      for (std::uint32_t k = 0; k < kBlockK; ++k) {
        const auto bits = static_cast<std::uint16_t>(in[k]);
        std::memcpy(block + std::uint64_t{k} * stride + unit * 2, &bits, 2);
      }
    } else if constexpr (F == Format::kE4m3) {
      for (std::uint32_t k = 0; k < kBlockK; ++k)
        block[std::uint64_t{k / 2} * stride + unit * 2 + k % 2] = static_cast<std::byte>(in[k]);
    } else {
      const auto bit = [](std::uint32_t value, int i) { return (value >> i) & 1u; };
      std::uint32_t signs = 0;
      for (int v = 0; v < 8; ++v) {
        const std::uint32_t even = in[2 * v], odd = in[2 * v + 1];  // sign << 8 | body
        signs |= (bit(odd, 8) ^ bit(even, 3)) << (15 - v);
        signs |= (bit(odd, 3) ^ bit(even, 8)) << (7 - v);
      }
      const auto sign_bits = static_cast<std::uint16_t>(signs);
      std::memcpy(block + unit * 2, &sign_bits, 2);
      for (std::uint32_t v = 0; v < 8; ++v) {
        const std::uint32_t even = in[2 * v], odd = ((in[2 * v + 1] & 0xFF) << 4) ^ (signs << v);
        const auto bits = static_cast<std::uint16_t>(bit(even, 8) << 15 | (even & 0xFF) << 4 | ((odd >> 8) & 0x000F) |
                                                     ((odd << 8) & 0x7000));
        std::memcpy(block + std::uint64_t{1 + v} * stride + unit * 2, &bits, 2);
      }
    }
  }
}

// The codes [row][k] of a block, as encode_block() took them.
template <Format F>
void decode_codes(const std::byte* block, std::uint32_t stride, std::uint32_t (&codes)[kPanelRows][kBlockK]) noexcept {
  const auto unit_at = [](const std::byte* at) {
    std::uint16_t bits;
    std::memcpy(&bits, at, 2);
    return std::uint32_t{bits};
  };
  for (std::uint32_t unit = 0; unit < kPanelRows; ++unit) {
    const std::uint32_t row = unit_row(unit);
    std::uint32_t* out = codes[row];
    if constexpr (F == Format::kF32) {
      for (std::uint32_t k = 0; k < kBlockK; ++k)
        std::memcpy(&out[k], block + std::uint64_t{2 * k + row / 8} * stride + row % 8 * 4, 4);
    } else if constexpr (F == Format::kBf16) {
      for (std::uint32_t k = 0; k < kBlockK; ++k) out[k] = unit_at(block + std::uint64_t{k} * stride + unit * 2);
    } else if constexpr (F == Format::kE4m3) {
      for (std::uint32_t v = 0; v < kBlockK / 2; ++v) {
        const std::uint32_t pair = unit_at(block + std::uint64_t{v} * stride + unit * 2);
        out[2 * v] = pair & 0xFF;
        out[2 * v + 1] = pair >> 8;
      }
    } else {
      const std::uint32_t signs = unit_at(block + unit * 2);
      for (std::uint32_t v = 0; v < kBlockK / 2; ++v) {
        const std::uint32_t even = unit_at(block + std::uint64_t{1 + v} * stride + unit * 2);
        const std::uint32_t odd = ((even << 8 | even >> 8) ^ signs << v) & 0xFFFF;
        out[2 * v] = even >> 15 << 8 | (even >> 4 & 0xFF);
        out[2 * v + 1] = odd >> 15 << 8 | (odd >> 4 & 0xFF);
      }
    }
  }
}

template <Format F>
void put_code(std::uint32_t code, std::uint64_t i, std::byte* codes, std::byte* signs) noexcept {
  if constexpr (F == Format::kF32) {
    std::memcpy(codes + i * 4, &code, 4);
  } else if constexpr (F == Format::kBf16) {
    const auto bits = static_cast<std::uint16_t>(code);
    std::memcpy(codes + i * 2, &bits, 2);
  } else {
    codes[i] = static_cast<std::byte>(code);
    if constexpr (F == Format::kFp9) signs[i / 8] |= static_cast<std::byte>((code >> 8) << (i % 8));
  }
}

template <Format F>
void unpack_format(const MatrixView& view, const PanelShape& shape, std::uint32_t panel0, std::uint32_t panel_step,
                   std::byte* out, std::byte* signs) noexcept {
  const std::uint32_t num_panels = (shape.row_lead + shape.num_rows + kPanelRows - 1) / kPanelRows;
  std::uint32_t codes[kPanelRows][kBlockK];
  for (std::uint32_t panel = 0; panel < num_panels; ++panel) {
    const std::uint32_t source = panel0 + panel * panel_step;
    const std::byte* block = view.block(source, 0);
    const std::uint32_t stride = view.vector_stride(source);
    const std::uint64_t next = view.group_width(view.group_of(source)) * block_bytes(F);
    for (std::uint32_t b = 0; b < shape.num_blocks; ++b, block += next) {
      decode_codes<F>(block, stride, codes);
      const std::uint32_t col = b * kBlockK;
      const std::uint32_t first = col < shape.col_lead ? shape.col_lead - col : 0;
      const std::uint32_t end = std::min(kBlockK, shape.col_lead + shape.num_cols - col);
      for (std::uint32_t r = 0; r < kPanelRows; ++r) {
        const std::uint32_t row = panel * kPanelRows + r - shape.row_lead;  // wraps before the first
        if (row >= shape.num_rows) continue;
        const std::uint64_t at = std::uint64_t{row} * shape.num_cols + col - shape.col_lead;
        for (std::uint32_t k = first; k < end; ++k) put_code<F>(codes[r][k], at + k, out, signs);
      }
    }
  }
}

// The index of the first code that is not a finite number, or `count`. Eight bytes at a time: a field whose exponent bits
// are all ones, and no other, reaches its top bit when one is added to them.
template <Format F>
std::uint64_t first_not_finite(const CodeMatrix& source, std::uint64_t count) noexcept {
  constexpr std::uint64_t kExponents = F == Format::kF32    ? 0x7F800000'7F800000
                                       : F == Format::kBf16 ? 0x7F807F80'7F807F80
                                       : F == Format::kE4m3 ? 0x7F7F7F7F'7F7F7F7F
                                                            : 0x7C7C7C7C'7C7C7C7C;
  constexpr std::uint64_t kTops = F == Format::kF32 ? 0x80000000'80000000 : F == Format::kBf16 ? 0x80008000'80008000
                                                                                                : 0x80808080'80808080;
  constexpr std::uint64_t kOnes = kExponents & ~(kExponents << 1);  // the lowest exponent bit of each field
  constexpr std::uint64_t kEach = F == Format::kF32 ? 2 : F == Format::kBf16 ? 4 : 8;
  constexpr std::uint64_t kWords = 32;
  std::uint64_t i = 0;
  for (; i + kWords * kEach <= count; i += kWords * kEach) {
    const std::byte* at = source.codes + i / kEach * 8;
    std::uint64_t found = 0;
    for (std::uint64_t w = 0; w < kWords; ++w) {
      std::uint64_t word;
      std::memcpy(&word, at + 8 * w, 8);
      if constexpr (F == Format::kFp9) word >>= 1;  // its exponent begins at the top bit
      found |= (word & kExponents) + kOnes;
    }
    if (found & kTops) break;
  }
  while (i < count && is_finite<F>(code_at<F>(source, i))) ++i;
  return i;
}

// A block that lies wholly in the matrix; `first` is the index of its first code.
template <Format F>
void pack_whole_block(const CodeMatrix& source, std::uint64_t first, std::uint32_t num_cols, std::byte* block,
                      std::uint32_t stride) noexcept {
  if constexpr (F == Format::kE4m3) {
    const std::byte* rows[kPanelRows];
    for (std::uint32_t unit = 0; unit < kPanelRows; ++unit)
      rows[unit] = source.codes + first + std::uint64_t{unit_row(unit)} * num_cols;
    for (std::uint32_t v = 0; v < kBlockK / 2; ++v)
      for (std::uint32_t unit = 0; unit < kPanelRows; ++unit)
        std::memcpy(block + std::uint64_t{v} * stride + unit * 2, rows[unit] + 2 * v, 2);
  } else {
    std::uint32_t codes[kPanelRows][kBlockK];
    for (std::uint32_t r = 0; r < kPanelRows; ++r)
      for (std::uint32_t k = 0; k < kBlockK; ++k)
        codes[r][k] = code_at<F>(source, first + std::uint64_t{r} * num_cols + k);
    encode_block<F>(codes, block, stride);
  }
}

template <Format F>
std::optional<Position> pack_format(const CodeMatrix& source, const PanelShape& shape, const MatrixView& view,
                                    std::byte* blocks, std::uint32_t panel0, std::uint32_t panel_step) noexcept {
  const std::uint64_t num_codes = std::uint64_t{shape.num_rows} * shape.num_cols;
  if (const std::uint64_t bad = first_not_finite<F>(source, num_codes); bad != num_codes)
    return Position{bad / shape.num_cols, bad % shape.num_cols};
  const std::uint32_t num_panels = (shape.row_lead + shape.num_rows + kPanelRows - 1) / kPanelRows;
  std::uint32_t codes[kPanelRows][kBlockK];
  for (std::uint32_t panel = 0; panel < num_panels; ++panel) {
    // Rows and columns before the first wrap to huge numbers and are filling like those after the last.
    const std::uint32_t row0 = panel * kPanelRows - shape.row_lead, target = panel0 + panel * panel_step;
    const bool whole_rows = row0 < shape.num_rows && shape.num_rows - row0 >= kPanelRows;
    const std::uint32_t stride = view.vector_stride(target);
    std::byte* block = blocks + (view.block(target, 0) - view.blocks);
    const std::uint64_t next = view.group_width(view.group_of(target)) * block_bytes(F);
    for (std::uint32_t b = 0; b < shape.num_blocks; ++b, block += next) {
      const std::uint32_t col0 = b * kBlockK - shape.col_lead;
      if (whole_rows && col0 < shape.num_cols && shape.num_cols - col0 >= kBlockK) {
        pack_whole_block<F>(source, std::uint64_t{row0} * shape.num_cols + col0, shape.num_cols, block, stride);
        continue;
      }
      for (std::uint32_t r = 0; r < kPanelRows; ++r) {
        for (std::uint32_t k = 0; k < kBlockK; ++k) {
          const std::uint32_t row = row0 + r, col = col0 + k;
          const bool inside = row < shape.num_rows && col < shape.num_cols;
          codes[r][k] = inside ? code_at<F>(source, std::uint64_t{row} * shape.num_cols + col) : 0;
        }
      }
      encode_block<F>(codes, block, stride);
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<Position> pack_rows(const CodeMatrix& source, const PanelShape& shape, const MatrixView& view,
                                  std::byte* blocks, std::uint32_t panel0, std::uint32_t panel_step) noexcept {
  if (shape.num_rows == 0 || shape.num_cols == 0) return std::nullopt;
  switch (source.format) {
    case Format::kF32: return pack_format<Format::kF32>(source, shape, view, blocks, panel0, panel_step);
    case Format::kBf16: return pack_format<Format::kBf16>(source, shape, view, blocks, panel0, panel_step);
    case Format::kE4m3: return pack_format<Format::kE4m3>(source, shape, view, blocks, panel0, panel_step);
    case Format::kFp9: return pack_format<Format::kFp9>(source, shape, view, blocks, panel0, panel_step);
  }
  return std::nullopt;
}

void pack_scales(const std::byte* scales, const PanelShape& shape, std::uint32_t row0, const MatrixView& view, float* out,
                 std::uint32_t panel0, std::uint32_t panel_step) noexcept {
  const std::uint32_t first_row = row0 - shape.row_lead;
  const std::uint32_t num_panels = (shape.row_lead + shape.num_rows + kPanelRows - 1) / kPanelRows;
  for (std::uint32_t p = 0; p < num_panels; ++p) {
    const std::uint32_t row_tile = (first_row + p * kPanelRows) / kTile - row0 / kTile;
    for (std::uint32_t tile = 0; tile < shape.num_tiles; ++tile)
      std::memcpy(out + view.scale_index(panel0 + p * panel_step, tile),
                  scales + (std::uint64_t{row_tile} * shape.num_tiles + tile) * sizeof(float), sizeof(float));
  }
}

void unpack_rows(const MatrixView& view, const PanelShape& shape, std::uint32_t panel0, std::uint32_t panel_step,
                 std::byte* codes, std::byte* signs) noexcept {
  if (shape.num_rows == 0 || shape.num_cols == 0) return;
  switch (view.format) {
    case Format::kF32: return unpack_format<Format::kF32>(view, shape, panel0, panel_step, codes, signs);
    case Format::kBf16: return unpack_format<Format::kBf16>(view, shape, panel0, panel_step, codes, signs);
    case Format::kE4m3: return unpack_format<Format::kE4m3>(view, shape, panel0, panel_step, codes, signs);
    case Format::kFp9: return unpack_format<Format::kFp9>(view, shape, panel0, panel_step, codes, signs);
  }
}

void unpack_scales(const MatrixView& view, const PanelShape& shape, std::uint32_t row0, std::uint32_t panel0,
                   std::uint32_t panel_step, std::byte* scales) noexcept {
  const std::uint32_t first_row = row0 - shape.row_lead;
  const std::uint32_t num_panels = (shape.row_lead + shape.num_rows + kPanelRows - 1) / kPanelRows;
  for (std::uint32_t p = 0; p < num_panels; ++p) {  // the panels of a tile all have its scale
    const std::uint32_t row_tile = (first_row + p * kPanelRows) / kTile - row0 / kTile;
    for (std::uint32_t tile = 0; tile < shape.num_tiles; ++tile)
      std::memcpy(scales + (std::uint64_t{row_tile} * shape.num_tiles + tile) * sizeof(float),
                  view.scale(panel0 + p * panel_step, tile), sizeof(float));
  }
}

void unpack(const Kernels& kernels, const MatrixView& view, const PanelShape& shape, float* out) noexcept {
  alignas(64) float block[kBlockK * kPanelRows];
  for (std::uint32_t panel = 0; panel < view.num_panels; ++panel) {
    for (std::uint32_t tile = 0; tile < view.num_tiles; ++tile) {
      const float scale = view.scales ? *view.scale(panel, tile) : 1.0f;
      for (std::uint32_t b = view.tile_begin(tile); b < view.tile_begin(tile + 1); ++b) {
        kernels.decode_block(view.format, view.block(panel, b), view.vector_stride(panel), block);
        for (std::uint32_t k = 0; k < kBlockK; ++k) {
          const std::uint32_t col = b * kBlockK + k;
          if (col < shape.col_lead || col >= shape.col_lead + shape.num_cols) continue;
          for (std::uint32_t r = 0; r < kPanelRows; ++r) {
            const std::uint32_t row = panel * kPanelRows + r;
            if (row < shape.row_lead || row >= shape.row_lead + shape.num_rows) continue;
            out[std::uint64_t{row - shape.row_lead} * shape.num_cols + col - shape.col_lead] =
                block[k * kPanelRows + r] * scale;
          }
        }
      }
    }
  }
}

}  // namespace duckfleet::kernels
