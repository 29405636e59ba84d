// Packing one matrix of row-major codes into panels, and reading it back.
#pragma once

#include <cstddef>
#include <optional>

#include "kernels.hpp"

namespace duckfleet::kernels {

// Row-major codes as they lie in a logical chunk.
struct CodeMatrix {
  Format format;
  const std::byte* codes;  // f32, bf16, e4m3 codes or fp9 bodies; need not be aligned
  const std::byte* signs;  // fp9: bit i % 8 of byte i / 8 for weight i; null otherwise
};

// Writes the rows of `source` (shape.num_rows x shape.num_cols) as the panels panel0, panel0 + panel_step, ... of the
// packed matrix `view`. Gives the position of a code that is not a finite number; packing stops there.
std::optional<Position> pack_rows(const CodeMatrix& source, const PanelShape& shape, const MatrixView& view,
                                  std::byte* blocks, std::uint32_t panel0, std::uint32_t panel_step) noexcept;

// Writes one scale a (panel, tile) from the row-major scales of the tiles that the piece touches. `row0` is the
// piece's first row in the whole matrix.
void pack_scales(const std::byte* scales, const PanelShape& shape, std::uint32_t row0, const MatrixView& view, float* out,
                 std::uint32_t panel0, std::uint32_t panel_step) noexcept;

// The other way round, byte for byte. `signs` (fp9 only) must be zero where it is written to.
void unpack_rows(const MatrixView& view, const PanelShape& shape, std::uint32_t panel0, std::uint32_t panel_step,
                 std::byte* codes, std::byte* signs) noexcept;
void unpack_scales(const MatrixView& view, const PanelShape& shape, std::uint32_t row0, std::uint32_t panel0,
                   std::uint32_t panel_step, std::byte* scales) noexcept;

// The weights (code * scale) of a packed matrix as f32 [num_rows, num_cols].
void unpack(const Kernels& kernels, const MatrixView& view, const PanelShape& shape, float* out) noexcept;

}  // namespace duckfleet::kernels
