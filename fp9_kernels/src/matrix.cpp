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

namespace {

class MultiplyCall {
 public:
  MultiplyCall(const Kernels& kernels, Team& team, const PackedMatrix& matrix, const float* x, std::uint32_t num_tokens,
               float* y, MatrixWorkspace& workspace)
      : kernels_(kernels), team_(team), view_(matrix.view()), shape_(matrix.shape()), x_(x), num_tokens_(num_tokens),
        y_(y), workspace_(workspace) {
    x_stride_ = spread_stride(shape_.padded_cols());
    const std::size_t threads = team.num_threads();
    // Whole groups, evenly over the threads, in rounds short enough for the sums to stay in cache.
    const std::uint32_t num_groups = view_.num_groups(), num_threads = team.num_threads();
    const std::uint32_t rounds = (num_groups + 4 * num_threads - 1) / (4 * num_threads);
    groups_a_unit_ = (num_groups + num_threads * rounds - 1) / (num_threads * rounds);
    sums_floats_ = std::size_t{num_tokens} * groups_a_unit_ * kGroupPanels * kPanelRows;
    workspace.x.reserve(num_tokens * x_stride_);
    workspace.sums.reserve(threads * sums_floats_);
    workspace.tiles.reserve(threads * kTileFloats);
    workspace.in.reserve(num_tokens);
    workspace.out.reserve(threads * num_tokens);
    for (std::uint32_t t = 0; t < num_tokens; ++t) workspace.in.get()[t] = workspace.x.get() + t * x_stride_;
  }

  void operator()(std::uint32_t thread) noexcept {
    prepare_x(thread);
    team_.barrier();
    float* sums = workspace_.sums.get() + thread * sums_floats_;
    float** out = workspace_.out.get() + std::size_t{thread} * num_tokens_;
    for (;;) {
      const std::uint32_t group0 = next_.fetch_add(groups_a_unit_, std::memory_order_relaxed);
      if (group0 >= view_.num_groups()) return;
      const std::uint32_t panel0 = view_.group_first_panel(group0);
      const std::uint32_t group_end = std::min(group0 + groups_a_unit_, view_.num_groups());
      const std::uint32_t num_panels = view_.group_first_panel(group_end) - panel0;
      const std::uint32_t width = num_panels * kPanelRows;
      std::fill_n(sums, std::size_t{num_tokens_} * width, 0.0f);
      for (std::uint32_t t = 0; t < num_tokens_; ++t) out[t] = sums + std::size_t{t} * width;
      kernels_.accumulate({&view_, panel0, num_panels, 0, view_.num_tiles, workspace_.in.get(), out, num_tokens_,
                           shifted_, workspace_.tiles.get() + std::size_t{thread} * kTileFloats});
      const std::uint32_t first = panel0 * kPanelRows < shape_.row_lead ? shape_.row_lead - panel0 * kPanelRows : 0;
      const std::uint32_t row0 = panel0 * kPanelRows + first - shape_.row_lead;
      const std::uint32_t num_rows = std::min(width - first, shape_.num_rows - row0);
      for (std::uint32_t t = 0; t < num_tokens_; ++t)
        std::memcpy(y_ + std::size_t{t} * shape_.num_rows + row0, out[t] + first, num_rows * sizeof(float));
    }
  }

 private:
  void prepare_x(std::uint32_t thread) noexcept {
    bool shifted = has_scales(view_.format) && num_tokens_ <= kMaxShiftTokens;
    for (std::uint32_t t = 0; shifted && t < num_tokens_; ++t)
      shifted = kernels_.can_shift(x_ + std::size_t{t} * shape_.num_cols, shape_.num_cols);
    if (thread == 0) shifted_ = shifted;
    for (std::uint32_t t = thread; t < num_tokens_; t += team_.num_threads()) {
      const float* from = x_ + std::size_t{t} * shape_.num_cols;
      float* to = workspace_.x.get() + t * x_stride_;
      std::fill_n(to, shape_.col_lead, -0.0f);
      if (shifted)
        kernels_.shift(from, to + shape_.col_lead, shape_.num_cols);
      else
        std::memcpy(to + shape_.col_lead, from, shape_.num_cols * sizeof(float));
      std::fill(to + shape_.col_lead + shape_.num_cols, to + shape_.padded_cols(), -0.0f);
    }
  }

  const Kernels& kernels_;
  Team& team_;
  const MatrixView& view_;
  const PanelShape& shape_;
  const float* x_;
  std::uint32_t num_tokens_;
  float* y_;
  MatrixWorkspace& workspace_;
  std::size_t x_stride_ = 0, sums_floats_ = 0;
  std::uint32_t groups_a_unit_ = 1;
  bool shifted_ = false;
  std::atomic<std::uint32_t> next_{0};
};

}  // namespace

void multiply(const Kernels& kernels, Team& team, const PackedMatrix& matrix, const float* x, std::uint32_t num_tokens,
              float* y, MatrixWorkspace& workspace) {
  if (num_tokens == 0 || matrix.shape().num_rows == 0) return;
  MultiplyCall call(kernels, team, matrix, x, num_tokens, y, workspace);
  team.run(call);
}

}  // namespace duckfleet::kernels
