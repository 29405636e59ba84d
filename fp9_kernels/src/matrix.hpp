// One packed matrix and its product with a few vectors: the same kernels as the FFN's, for projections and the head.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels.hpp"
#include "memory.hpp"
#include "pack.hpp"
#include "team.hpp"
#include "workspace.hpp"

namespace duckfleet::kernels {

class PackedMatrix {
 public:
  // Packs source [num_rows, num_cols] whose first row and column are row0 and col0 of the whole matrix, with the scales
  // (row-major f32, any alignment; null for f32 and bf16) of the tiles it touches. `bad` is set to the position of the
  // first code that is not a finite number, and then the matrix is not to be used.
  PackedMatrix(const CodeMatrix& source, const std::byte* scales, std::uint32_t row0, std::uint32_t num_rows,
               std::uint32_t col0, std::uint32_t num_cols, std::optional<Position>& bad);

  const MatrixView& view() const noexcept { return view_; }
  const PanelShape& shape() const noexcept { return shape_; }
  std::uint64_t num_bytes() const noexcept { return memory_.size(); }

 private:
  PanelShape shape_;
  WeightMemory memory_;
  MatrixView view_;
};

struct MatrixWorkspace {
  GrowingArray<float> x, sums, tiles;
  GrowingArray<const float*> in;
  GrowingArray<float*> out;
};

// y[num_tokens, num_rows] = x[num_tokens, num_cols] times the matrix, in canonical order. Allocates only while
// `workspace` is still growing.
void multiply(const Kernels& kernels, Team& team, const PackedMatrix& matrix, const float* x, std::uint32_t num_tokens,
              float* y, MatrixWorkspace& workspace);

}  // namespace duckfleet::kernels
