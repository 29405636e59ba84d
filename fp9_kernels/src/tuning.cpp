#include "tuning.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <iterator>
#include <vector>

#include "memory.hpp"
#include "workspace.hpp"

namespace duckfleet::kernels {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kCols = 4096, kRows = 384;  // 1.5 MiB of e4m3: groups of three panels, in pairs
constexpr std::uint32_t kPieces = 10;               // a thread's; together they are larger than a small machine's caches
constexpr std::uint32_t kRounds = 40;
constexpr auto kBudget = std::chrono::milliseconds(50);
constexpr double kClearlyBetter = 0.97;  // of the default's time
constexpr std::byte kOne{0x38};          // 1.0 in e4m3

std::atomic<std::uint32_t> process_prefetch_bytes{kDefaultPrefetchBytes};

// What one thread multiplies: matrices of ones, each in its own stretch of memory.
struct Pieces {
  Pieces()
      : shape(PanelShape::of(0, kRows, 0, kCols)), stride((kLeadBytes + shape.stream_bytes(Format::kE4m3) + 63) / 64 * 64),
        memory(kPieces * stride) {
    std::memset(memory.data(), static_cast<int>(kOne), memory.size());
    x.reserve(kCols);
    fill_floats(x.get(), kCols, 1.0f);
    sums.reserve(kRows);
    scratch.reserve(kTileFloats);
  }

  void multiply(const Kernels& kernels, std::uint32_t piece, std::uint32_t prefetch) noexcept {
    const std::byte* blocks = memory.data() + piece % kPieces * stride + kLeadBytes;
    const MatrixView view = MatrixView::of(Format::kE4m3, shape, blocks, nullptr);
    const float* in = x.get();
    float* out = sums.get();
    kernels.accumulate({.matrix = &view, .panel0 = 0, .num_panels = view.num_panels, .tile0 = 0,
                        .num_tiles = view.num_tiles, .x = &in, .totals = &out, .num_tokens = 1, .shifted = true,
                        .scratch = scratch.get(), .prefetch_bytes = prefetch});
  }

  PanelShape shape;
  std::uint64_t stride;
  WeightMemory memory;
  GrowingArray<float> x, sums, scratch;
};

double median(std::vector<double>& values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

}  // namespace

std::uint32_t prefetch_bytes() noexcept { return process_prefetch_bytes.load(std::memory_order_relaxed); }
void set_prefetch_bytes(std::uint32_t bytes) noexcept { process_prefetch_bytes.store(bytes, std::memory_order_relaxed); }

std::uint32_t fastest_prefetch(const Kernels& kernels, Team& team) {
  if (!kernels.prefetches) return kDefaultPrefetchBytes;
  constexpr std::size_t kChoices = std::size(kPrefetchDistances);
  std::vector<Pieces> pieces(team.num_threads());
  std::array<std::vector<double>, kChoices> seconds;
  std::uint32_t turn = 0;
  const auto begun = Clock::now();
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < kChoices; ++i, ++turn) {
      const std::size_t choice = (i + round) % kChoices;
      auto body = [&](std::uint32_t thread) noexcept {
        pieces[thread].multiply(kernels, turn, kPrefetchDistances[choice]);
      };
      const auto start = Clock::now();
      team.run(body);
      seconds[choice].push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
    if (Clock::now() - begun > kBudget) break;
  }
  std::size_t best = 0;
  double default_s = 0;
  std::array<double, kChoices> typical;
  for (std::size_t i = 0; i < kChoices; ++i) {
    typical[i] = median(seconds[i]);
    if (typical[i] < typical[best]) best = i;
    if (kPrefetchDistances[i] == kDefaultPrefetchBytes) default_s = typical[i];
  }
  return typical[best] < kClearlyBetter * default_s ? kPrefetchDistances[best] : kDefaultPrefetchBytes;
}

}  // namespace duckfleet::kernels
