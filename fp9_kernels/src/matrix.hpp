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

// A product cut into units, for callers that share work out in their own way: prepare(), then every unit once, in any
// order, on any threads that are in IeeeMode. multiply() is one such caller.
class Product {
 public:
  Product() = default;

  // y[t * y_stride + row] for x[num_tokens, num_cols], cut for `num_threads` threads with the ids 0 .. num_threads - 1.
  // The workspace belongs to this product until its last unit is done; allocates only while it is still growing.
  Product(const Kernels& kernels, const PackedMatrix& matrix, const float* x, std::uint32_t num_tokens, float* y,
          std::size_t y_stride, std::uint32_t num_threads, MatrixWorkspace& workspace);

  // The activations as the kernels want them. Tokens t with t % stride == first; `shifted` is may_shift().
  void prepare(bool shifted, std::uint32_t first = 0, std::uint32_t stride = 1) noexcept;
  // Whether all activations are in the range for a shifted call.
  bool may_shift() const noexcept;
  void set_shifted(bool shifted) noexcept { shifted_ = shifted; }

  std::uint32_t num_units() const noexcept { return num_units_; }
  void unit(std::uint32_t index, std::uint32_t thread) noexcept;

 private:
  void write_rows(std::uint32_t token, std::uint32_t panel0, std::uint32_t num_panels, const float* sums) noexcept;

  const Kernels* kernels_ = nullptr;
  const PackedMatrix* matrix_ = nullptr;
  const float* x_ = nullptr;
  std::uint32_t num_tokens_ = 0;
  float* y_ = nullptr;
  std::size_t y_stride_ = 0;
  MatrixWorkspace* workspace_ = nullptr;
  std::size_t x_stride_ = 0, sums_floats_ = 0;
  std::uint32_t num_pairs_ = 0, num_units_ = 0, prefetch_bytes_ = 0;
  bool shifted_ = false;
};

// y[num_tokens, num_rows] = x[num_tokens, num_cols] times the matrix, in canonical order. Allocates only while
// `workspace` is still growing.
void multiply(const Kernels& kernels, Team& team, const PackedMatrix& matrix, const float* x, std::uint32_t num_tokens,
              float* y, MatrixWorkspace& workspace);

}  // namespace duckfleet::kernels
