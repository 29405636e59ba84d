// The AVX2 + FMA implementation: who sums which panels, and the table of its functions.
#include "../implementations.hpp"
#include "sums.hpp"

namespace duckfleet::kernels {
namespace avx2 {
namespace {

bool is_few(const AccumulateArgs& args) noexcept {
  return args.num_tokens <= kMaxFewTokens && (args.shifted || !has_scales(args.matrix->format));
}

// Pairs of groups (first + i, second + i), where all are full ones, for one token; whether it is done.
bool accumulate_pairs(const AccumulateArgs& args, std::uint32_t panel, std::uint32_t second_panel, std::uint32_t num_panels,
                      std::uint32_t total0, std::uint32_t total1) noexcept {
  const MatrixView& m = *args.matrix;
  const std::uint32_t first = panel / kGroupPanels, second = second_panel / kGroupPanels, count = num_panels / kGroupPanels;
  if (!is_few(args) || args.num_tokens != 1 || panel % kGroupPanels != 0 || second_panel % kGroupPanels != 0 ||
      num_panels % kGroupPanels != 0 || count == 0 || first + count > second || second + count > m.full_groups())
    return false;
  for (std::uint32_t i = 0; i < count; ++i)
    accumulate_pair(args, first + i, second + i, total0 + i * kGroupPanels * kPanelRows,
                    total1 + i * kGroupPanels * kPanelRows);
  return true;
}

void accumulate_range(const AccumulateArgs& args, std::uint32_t panel, std::uint32_t end, std::uint32_t total0) noexcept {
  const MatrixView& m = *args.matrix;
  const std::uint32_t full_panels = m.full_groups() * kGroupPanels, full_end = end < full_panels ? end : full_panels;
  if (panel < full_end) {
    // Two streams here too: the first and the second half of the range.
    const std::uint32_t half = (full_end - panel) / kGroupPanels / 2 * kGroupPanels;
    if (accumulate_pairs(args, panel, panel + half, half, total0, total0 + half * kPanelRows)) {
      panel += 2 * half;
      total0 += 2 * half * kPanelRows;
    }
  }
  while (panel < end) {
    const std::uint32_t group = m.group_of(panel), group_end = m.group_first_panel(group) + m.group_width(group);
    const PanelRange range{panel, group_end < end ? group_end : end, total0};
    if (is_few(args))
      accumulate_few(args, range);
    else
      accumulate_many(args, range);
    total0 += (range.end - panel) * kPanelRows;
    panel = range.end;
  }
}

void accumulate(const AccumulateArgs& args) noexcept {
  const std::uint32_t second0 = args.panel0 + args.panel_gap, second_total0 = args.num_panels * kPanelRows;
  if (args.panel_gap != 0 && accumulate_pairs(args, args.panel0, second0, args.num_panels, 0, second_total0)) return;
  accumulate_range(args, args.panel0, args.panel0 + args.num_panels, 0);
  if (args.panel_gap != 0) accumulate_range(args, second0, second0 + args.num_panels, second_total0);
}

}  // namespace
}  // namespace avx2

const Kernels& avx2_kernels() noexcept {
  static constexpr Kernels kernels{"avx2",         avx2::accumulate, avx2::decode_block, avx2::silu_mul,
                                   avx2::can_shift, avx2::shift,      true};
  return kernels;
}

}  // namespace duckfleet::kernels
