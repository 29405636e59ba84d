#include "pack.hpp"

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

template <Format F>
void put(std::byte* block, std::uint32_t row, std::uint32_t k, std::uint32_t code) noexcept {
  const std::uint32_t unit = row < 8 ? 2 * row : 2 * (row - 8) + 1;
  if constexpr (F == Format::kF32) {
    std::memcpy(block + (k * kPanelRows + row) * 4, &code, 4);
  } else if constexpr (F == Format::kBf16) {
    const auto bits = static_cast<std::uint16_t>(code);
    std::memcpy(block + (k * kPanelRows + unit) * 2, &bits, 2);
  } else if constexpr (F == Format::kE4m3) {
    block[(k / 2) * 32 + unit * 2 + k % 2] = static_cast<std::byte>(code);
  } else {
    block[32 + (k / 2) * 32 + unit * 2 + k % 2] = static_cast<std::byte>(code & 0xFF);
    const std::uint32_t bit = 15 - k;
    block[unit * 2 + bit / 8] |= static_cast<std::byte>(((code >> 8) & 1) << (bit % 8));
  }
}

template <Format F>
std::optional<Position> pack_format(const CodeMatrix& source, const PanelShape& shape, const MatrixView& view,
                                    std::byte* blocks, std::uint32_t panel0, std::uint32_t panel_step) noexcept {
  for (std::uint32_t r = 0; r < shape.num_rows; ++r) {
    const std::uint32_t row = shape.row_lead + r;
    const std::uint32_t panel = panel0 + row / kPanelRows * panel_step;
    for (std::uint32_t c = 0; c < shape.num_cols;) {
      const std::uint32_t col = shape.col_lead + c;
      std::byte* block = blocks + (view.block(panel, col / kBlockK) - view.blocks);
      std::uint32_t k = col % kBlockK;
      for (; k < kBlockK && c < shape.num_cols; ++k, ++c) {
        const std::uint32_t code = code_at<F>(source, std::uint64_t{r} * shape.num_cols + c);
        if (!is_finite<F>(code)) return Position{r, c};
        put<F>(block, row % kPanelRows, k, code);
      }
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<Position> pack_rows(const CodeMatrix& source, const PanelShape& shape, const MatrixView& view,
                                  std::byte* blocks, std::uint32_t panel0, std::uint32_t panel_step) noexcept {
  switch (source.format) {
    case Format::kF32: return pack_format<Format::kF32>(source, shape, view, blocks, panel0, panel_step);
    case Format::kBf16: return pack_format<Format::kBf16>(source, shape, view, blocks, panel0, panel_step);
    case Format::kE4m3: return pack_format<Format::kE4m3>(source, shape, view, blocks, panel0, panel_step);
    case Format::kFp9: return pack_format<Format::kFp9>(source, shape, view, blocks, panel0, panel_step);
  }
  return std::nullopt;
}

void pack_scales(const std::byte* scales, const PanelShape& shape, std::uint32_t row0, float* out, std::uint32_t panel0,
                 std::uint32_t panel_step) noexcept {
  const std::uint32_t first_row = row0 - shape.row_lead;
  const std::uint32_t num_panels = (shape.row_lead + shape.num_rows + kPanelRows - 1) / kPanelRows;
  for (std::uint32_t p = 0; p < num_panels; ++p) {
    const std::uint32_t row_tile = (first_row + p * kPanelRows) / kTile - row0 / kTile;
    std::memcpy(out + std::uint64_t{panel0 + p * panel_step} * shape.num_tiles,
                scales + std::uint64_t{row_tile} * shape.num_tiles * sizeof(float), shape.num_tiles * sizeof(float));
  }
}

void unpack(const Kernels& kernels, const MatrixView& view, const PanelShape& shape, float* out) noexcept {
  alignas(64) float block[kBlockK * kPanelRows];
  for (std::uint32_t panel = 0; panel < view.num_panels; ++panel) {
    for (std::uint32_t tile = 0; tile < view.num_tiles; ++tile) {
      const float scale = view.scales ? view.scales[std::uint64_t{panel} * view.num_tiles + tile] : 1.0f;
      for (std::uint32_t b = view.tile_begin(tile); b < view.tile_begin(tile + 1); ++b) {
        kernels.decode_block(view.format, view.block(panel, b), block);
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
