#include "matrix.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "tuning.hpp"

namespace duckfleet::kernels {

PackedMatrix::PackedMatrix(const CodeMatrix& source, const std::byte* scales, std::uint32_t row0, std::uint32_t num_rows,
                           std::uint32_t col0, std::uint32_t num_cols, std::optional<Position>& bad)
    : shape_(PanelShape::of(row0, num_rows, col0, num_cols)) {
  const std::uint64_t scale_bytes = (shape_.scale_bytes(source.format) + 63) / 64 * 64;
  memory_ = WeightMemory(kLeadBytes + shape_.stream_bytes(source.format) + scale_bytes);
  std::byte* blocks = memory_.data() + kLeadBytes;
  auto* scales_out = reinterpret_cast<float*>(blocks + shape_.stream_bytes(source.format));
  view_ = MatrixView::of(source.format, shape_, blocks, has_scales(source.format) ? scales_out : nullptr);
  bad = pack_rows(source, shape_, view_, blocks, 0, 1);
  if (!bad && has_scales(source.format)) pack_scales(scales, shape_, row0, view_, scales_out, 0, 1);
}

Product::Product(const Kernels& kernels, const PackedMatrix& matrix, const float* x, std::uint32_t num_tokens, float* y,
                 std::size_t y_stride, std::uint32_t num_threads, MatrixWorkspace& workspace)
    : kernels_(&kernels), matrix_(&matrix), x_(x), num_tokens_(num_tokens), y_(y), y_stride_(y_stride),
      workspace_(&workspace), x_stride_(spread_stride(matrix.shape().padded_cols())),
      prefetch_bytes_(prefetch_bytes()) {
  // One token: pairs of groups from both halves, which kernels read as two streams; then what is left. More: group after
  // group.
  const MatrixView& view = matrix.view();
  num_pairs_ = num_tokens == 1 ? view.half_groups() : 0;
  num_units_ = view.num_groups() - num_pairs_;
  sums_floats_ = std::size_t{num_tokens} * 2 * kGroupPanels * kPanelRows;
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
  bool shifted = has_scales(matrix_->view().format);
  for (std::uint32_t t = 0; shifted && t < num_tokens_; ++t)
    shifted = kernels_->can_shift(x_ + std::size_t{t} * num_cols, num_cols);
  return shifted;
}

void Product::prepare(bool shifted, std::uint32_t first, std::uint32_t stride) noexcept {
  const PanelShape& shape = matrix_->shape();
  for (std::uint32_t t = first; t < num_tokens_; t += stride) {
    const float* from = x_ + std::size_t{t} * shape.num_cols;
    float* to = workspace_->x.get() + t * x_stride_;
    fill_floats(to, shape.col_lead, -0.0f);
    if (shifted)
      kernels_->shift(from, to + shape.col_lead, shape.num_cols);
    else
      copy_floats(from, to + shape.col_lead, shape.num_cols);
    fill_floats(to + shape.col_lead + shape.num_cols, shape.padded_cols() - shape.col_lead - shape.num_cols, -0.0f);
  }
}

void Product::unit(std::uint32_t index, std::uint32_t thread) noexcept {
  const MatrixView& view = matrix_->view();
  const bool pair = index < num_pairs_;
  const std::uint32_t group = pair ? index : index + num_pairs_, panel0 = view.group_first_panel(group);
  const std::uint32_t num_panels = view.group_width(group), panel_gap = pair ? num_pairs_ * kGroupPanels : 0;
  const std::uint32_t width = num_panels * (pair ? 2 : 1) * kPanelRows;
  float* sums = workspace_->sums.get() + thread * sums_floats_;
  float** out = workspace_->out.get() + std::size_t{thread} * num_tokens_;
  fill_floats(sums, std::size_t{num_tokens_} * width, 0.0f);
  for (std::uint32_t t = 0; t < num_tokens_; ++t) out[t] = sums + std::size_t{t} * width;
  kernels_->accumulate({&view, panel0, num_panels, 0, view.num_tiles, workspace_->in.get(), out, num_tokens_, shifted_,
                        workspace_->tiles.get() + std::size_t{thread} * kTileFloats, panel_gap, prefetch_bytes_});
  for (std::uint32_t t = 0; t < num_tokens_; ++t) {
    write_rows(t, panel0, num_panels, out[t]);
    if (pair) write_rows(t, panel0 + panel_gap, num_panels, out[t] + num_panels * kPanelRows);
  }
}

// Sums of panels without the filling rows at either end of the matrix.
void Product::write_rows(std::uint32_t token, std::uint32_t panel0, std::uint32_t num_panels, const float* sums) noexcept {
  const PanelShape& shape = matrix_->shape();
  const std::uint32_t begin = std::max(panel0 * kPanelRows, shape.row_lead);
  const std::uint32_t end = std::min((panel0 + num_panels) * kPanelRows, shape.row_lead + shape.num_rows);
  copy_floats(sums + (begin - panel0 * kPanelRows), y_ + token * y_stride_ + (begin - shape.row_lead), end - begin);
}

namespace {
constexpr std::size_t kMaxRanges = 64;
}

void multiply(const Kernels& kernels, Team& team, const PackedMatrix& matrix, const float* x, std::uint32_t num_tokens,
              float* y, MatrixWorkspace& workspace) {
  if (num_tokens == 0 || matrix.shape().num_rows == 0) return;
  Product product(kernels, matrix, x, num_tokens, y, matrix.shape().num_rows, team.num_threads(), workspace);
  // Each thread goes through a range of units, which is one stretch of memory, and then helps the others with theirs.
  const std::uint32_t threads = team.num_threads();
  struct alignas(64) Range {
    std::atomic<std::uint32_t> next;
    std::uint32_t end;
  };
  std::array<Range, kMaxRanges> ranges;
  const std::uint32_t num_ranges = std::min<std::uint32_t>(threads, kMaxRanges);
  for (std::uint32_t i = 0; i < num_ranges; ++i) {
    ranges[i].next.store(product.num_units() * i / num_ranges, std::memory_order_relaxed);
    ranges[i].end = product.num_units() * (i + 1) / num_ranges;
  }
  auto body = [&](std::uint32_t thread) noexcept {
    const bool shifted = product.may_shift();
    if (thread == 0) product.set_shifted(shifted);
    product.prepare(shifted, thread, threads);
    team.barrier();
    for (std::uint32_t step = 0; step < num_ranges; ++step) {
      Range& range = ranges[(thread + step) % num_ranges];
      for (std::uint32_t i; (i = range.next.fetch_add(1, std::memory_order_relaxed)) < range.end;) product.unit(i, thread);
    }
  };
  team.run(body);
}

}  // namespace duckfleet::kernels
