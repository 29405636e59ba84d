#include "matrix.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace duckfleet::kernels {

PackedMatrix::PackedMatrix(const CodeMatrix& source, const std::byte* scales, std::uint32_t row0, std::uint32_t num_rows,
                           std::uint32_t col0, std::uint32_t num_cols, std::optional<Position>& bad)
    : shape_(PanelShape::of(row0, num_rows, col0, num_cols)) {
  const std::uint64_t scale_bytes = (shape_.scale_bytes(source.format) + 63) / 64 * 64;
  memory_ = WeightMemory(shape_.stream_bytes(source.format) + scale_bytes);
  std::byte* blocks = memory_.data();
  auto* scales_out = reinterpret_cast<float*>(memory_.data() + shape_.stream_bytes(source.format));
  view_ = MatrixView::of(source.format, shape_, blocks, has_scales(source.format) ? scales_out : nullptr);
  bad = pack_rows(source, shape_, view_, blocks, 0, 1);
  if (!bad && has_scales(source.format)) pack_scales(scales, shape_, row0, view_, scales_out, 0, 1);
}

Product::Product(const Kernels& kernels, const PackedMatrix& matrix, const float* x, std::uint32_t num_tokens, float* y,
                 std::size_t y_stride, std::uint32_t num_threads, MatrixWorkspace& workspace)
    : kernels_(&kernels), matrix_(&matrix), x_(x), num_tokens_(num_tokens), y_(y), y_stride_(y_stride),
      workspace_(&workspace), x_stride_(spread_stride(matrix.shape().padded_cols())) {
  // Whole groups, evenly over the threads, in rounds short enough for the sums to stay in cache.
  const std::uint32_t num_groups = matrix.view().num_groups();
  const std::uint32_t rounds = std::max(1u, (num_groups + 4 * num_threads - 1) / (4 * num_threads));
  groups_a_unit_ = std::max(1u, (num_groups + num_threads * rounds - 1) / (num_threads * rounds));
  num_units_ = (num_groups + groups_a_unit_ - 1) / groups_a_unit_;
  sums_floats_ = std::size_t{num_tokens} * groups_a_unit_ * kGroupPanels * kPanelRows;
  const std::size_t threads = num_threads;
  workspace.x.reserve(num_tokens * x_stride_);
  workspace.sums.reserve(threads * sums_floats_);
  workspace.tiles.reserve(threads * kTileFloats);
  workspace.in.reserve(num_tokens);
  workspace.out.reserve(threads * num_tokens);
  for (std::uint32_t t = 0; t < num_tokens; ++t) workspace.in.get()[t] = workspace.x.get() + t * x_stride_;
}

bool Product::may_shift() const noexcept {
  const std::uint32_t num_cols = matrix_->shape().num_cols;
  bool shifted = has_scales(matrix_->view().format) && num_tokens_ <= kMaxShiftTokens;
  for (std::uint32_t t = 0; shifted && t < num_tokens_; ++t)
    shifted = kernels_->can_shift(x_ + std::size_t{t} * num_cols, num_cols);
  return shifted;
}

void Product::prepare(bool shifted, std::uint32_t first, std::uint32_t stride) noexcept {
  const PanelShape& shape = matrix_->shape();
  for (std::uint32_t t = first; t < num_tokens_; t += stride) {
    const float* from = x_ + std::size_t{t} * shape.num_cols;
    float* to = workspace_->x.get() + t * x_stride_;
    std::fill_n(to, shape.col_lead, -0.0f);
    if (shifted)
      kernels_->shift(from, to + shape.col_lead, shape.num_cols);
    else
      std::memcpy(to + shape.col_lead, from, shape.num_cols * sizeof(float));
    std::fill(to + shape.col_lead + shape.num_cols, to + shape.padded_cols(), -0.0f);
  }
}

void Product::unit(std::uint32_t index, std::uint32_t thread) noexcept {
  const MatrixView& view = matrix_->view();
  const PanelShape& shape = matrix_->shape();
  const std::uint32_t group0 = index * groups_a_unit_;
  const std::uint32_t panel0 = view.group_first_panel(group0);
  const std::uint32_t group_end = std::min(group0 + groups_a_unit_, view.num_groups());
  const std::uint32_t num_panels = view.group_first_panel(group_end) - panel0;
  const std::uint32_t width = num_panels * kPanelRows;
  float* sums = workspace_->sums.get() + thread * sums_floats_;
  float** out = workspace_->out.get() + std::size_t{thread} * num_tokens_;
  std::fill_n(sums, std::size_t{num_tokens_} * width, 0.0f);
  for (std::uint32_t t = 0; t < num_tokens_; ++t) out[t] = sums + std::size_t{t} * width;
  kernels_->accumulate({&view, panel0, num_panels, 0, view.num_tiles, workspace_->in.get(), out, num_tokens_, shifted_,
                        workspace_->tiles.get() + std::size_t{thread} * kTileFloats});
  const std::uint32_t first = panel0 * kPanelRows < shape.row_lead ? shape.row_lead - panel0 * kPanelRows : 0;
  const std::uint32_t row0 = panel0 * kPanelRows + first - shape.row_lead;
  const std::uint32_t num_rows = std::min(width - first, shape.num_rows - row0);
  for (std::uint32_t t = 0; t < num_tokens_; ++t)
    std::memcpy(y_ + t * y_stride_ + row0, out[t] + first, num_rows * sizeof(float));
}

void multiply(const Kernels& kernels, Team& team, const PackedMatrix& matrix, const float* x, std::uint32_t num_tokens,
              float* y, MatrixWorkspace& workspace) {
  if (num_tokens == 0 || matrix.shape().num_rows == 0) return;
  Product product(kernels, matrix, x, num_tokens, y, matrix.shape().num_rows, team.num_threads(), workspace);
  std::atomic<std::uint32_t> next{0};
  auto body = [&](std::uint32_t thread) noexcept {
    const bool shifted = product.may_shift();
    if (thread == 0) product.set_shifted(shifted);
    product.prepare(shifted, thread, team.num_threads());
    team.barrier();
    for (std::uint32_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < product.num_units();)
      product.unit(i, thread);
  };
  team.run(body);
}

}  // namespace duckfleet::kernels
