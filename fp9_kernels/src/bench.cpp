#include "bench.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <tuple>
#include <vector>

#include "matrix.hpp"

namespace duckfleet::kernels {
namespace {

constexpr std::uint32_t kCols = 4096;
constexpr std::uint64_t kTotalBytes = 160u << 20;  // of matrices used in turn: each is out of cache when its turn comes

double seconds_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

// Matrices of one shape with the same random codes, each in memory of its own.
std::vector<PackedMatrix> random_matrices(Format format, std::uint32_t rows, std::uint64_t count) {
  std::mt19937 rng(7);
  const std::size_t weights = std::size_t{rows} * kCols;
  const std::size_t width = format == Format::kF32 ? 4 : format == Format::kBf16 ? 2 : 1;
  std::vector<std::byte> codes(weights * width), signs;
  // Codes as rounded normal weights have them: magnitudes near the middle of the range, subnormal codes rare.
  std::vector<float> normal(4096);
  std::normal_distribution<float> distribution;
  for (float& value : normal) value = distribution(rng) * 100.0f;
  for (std::size_t i = 0; i < weights; ++i) {
    const float value = normal[rng() % normal.size()];
    std::uint32_t code = 0;
    switch (format) {
      case Format::kF32: std::memcpy(&code, &value, 4); break;
      case Format::kBf16: code = encode_bf16(value); break;
      case Format::kE4m3: code = encode_e4m3(value); break;
      case Format::kFp9: code = encode_fp9(value); break;
    }
    std::memcpy(codes.data() + i * width, &code, width);
  }
  if (format == Format::kFp9) {
    signs.resize((weights + 7) / 8);
    for (std::byte& b : signs) b = static_cast<std::byte>(rng());
  }
  const std::vector<float> scales(std::size_t{tiles_touched(0, rows)} * tiles_touched(0, kCols), 1e-3f);
  std::optional<Position> bad;
  std::vector<PackedMatrix> matrices;
  for (std::uint64_t i = 0; i < count; ++i)
    matrices.emplace_back(CodeMatrix{format, codes.data(), signs.data()}, reinterpret_cast<const std::byte*>(scales.data()),
                          0, rows, 0, kCols, bad);
  return matrices;
}

// Those of the last format and size asked for: rows of a benchmark that share them do not make them again.
std::shared_ptr<const std::vector<PackedMatrix>> matrices_of(Format format, std::uint32_t rows, std::uint64_t count) {
  static std::mutex lock;
  static std::tuple<Format, std::uint32_t, std::uint64_t> kept_for;
  static std::shared_ptr<const std::vector<PackedMatrix>> kept;
  const std::lock_guard guard(lock);
  const std::tuple wanted{format, rows, count};
  if (!kept || kept_for != wanted) {
    kept.reset();  // before the next are made: both at once may be more than there is
    kept = std::make_shared<const std::vector<PackedMatrix>>(random_matrices(format, rows, count));
    kept_for = wanted;
  }
  return kept;
}

struct Bench {
  Bench(const Kernels& kernels_, Team& team_, Format format, std::uint32_t num_tokens_, std::uint64_t bytes_a_call)
      : kernels(kernels_), team(team_), num_tokens(num_tokens_) {
    const std::uint64_t bytes_a_panel = block_bytes(format) * (kCols / kBlockK);
    const auto panels = static_cast<std::uint32_t>((bytes_a_call + bytes_a_panel - 1) / bytes_a_panel);
    rows = (panels + 7) / 8 * 8 * kPanelRows;
    matrices = matrices_of(format, rows, kTotalBytes / (bytes_a_panel * (rows / kPanelRows)) + 2);
    std::mt19937 rng(11);
    x.resize(std::size_t{num_tokens} * kCols);
    std::normal_distribution<float> distribution;
    for (float& value : x) value = distribution(rng);
    y.resize(std::size_t{num_tokens} * rows);
  }

  const PackedMatrix& next() { return (*matrices)[turn++ % matrices->size()]; }

  double multiply_seconds() {
    const PackedMatrix& matrix = next();
    return seconds_of([&] { multiply(kernels, team, matrix, x.data(), num_tokens, y.data(), workspace); });
  }

  double read_seconds(std::uint32_t loop) {
    const PackedMatrix& matrix = next();
    const std::uint64_t share = matrix.num_bytes() / team.num_threads() / 4096 * 4096;
    std::atomic<std::uint64_t> sink{0};
    auto body = [&](std::uint32_t thread) noexcept {
      sink.fetch_xor(read_all(loop, matrix.view().blocks + thread * share, share), std::memory_order_relaxed);
    };
    const double seconds = seconds_of([&] { team.run(body); });
    return seconds * static_cast<double>(matrix.num_bytes()) / static_cast<double>(share * team.num_threads());
  }

  const Kernels& kernels;
  Team& team;
  std::uint32_t num_tokens, rows = 0, turn = 0;
  std::shared_ptr<const std::vector<PackedMatrix>> matrices;
  std::vector<float> x, y;
  MatrixWorkspace workspace;
};

}  // namespace

Measured measure_gemv(const Kernels& kernels, Team& team, Format format, std::uint32_t num_tokens, std::uint32_t rounds,
                      std::uint64_t bytes_a_call) {
  Bench bench(kernels, team, format, num_tokens, bytes_a_call);
  constexpr std::size_t kLoops = std::size(kReadAhead);
  std::vector<double> kernel, reads[kLoops];
  bench.multiply_seconds();
  for (std::uint32_t round = 0; round < rounds; ++round) {
    // The kernel in the middle of the loops, at another place each round.
    for (std::size_t i = 0; i < kLoops; ++i) {
      if (i == round % kLoops) kernel.push_back(bench.multiply_seconds());
      const std::size_t loop = (i + round / kLoops) % kLoops;
      reads[loop].push_back(bench.read_seconds(static_cast<std::uint32_t>(loop)));
    }
  }
  std::size_t best = 0;
  for (std::size_t loop = 1; loop < kLoops; ++loop)
    if (median(reads[loop]) < median(reads[best])) best = loop;
  std::vector<double> ratios;
  for (std::uint32_t round = 0; round < rounds; ++round) ratios.push_back(reads[best][round] / kernel[round]);
  const auto bytes = static_cast<double>(bench.matrices->front().num_bytes());
  return {bytes / median(kernel), bytes / median(reads[best]), median(ratios), median(kernel),
          kReadAhead[best] == 0 ? "no prefetch" : "prefetch " + std::to_string(kReadAhead[best] / 1024) + " KB ahead"};
}

Measured measure_gemm(const Kernels& kernels, Team& team, Format format, std::uint32_t num_tokens, std::uint32_t rounds,
                      std::uint64_t bytes_a_call) {
  Bench bench(kernels, team, format, num_tokens, bytes_a_call);
  const double flops = 2.0 * num_tokens * bench.rows * kCols;
  std::vector<double> kernel, peak, ratios;
  bench.multiply_seconds();
  // The peak is measured for about as long as the kernel runs: 12 fma of 8 lanes an iteration on each thread.
  const auto iterations = static_cast<std::uint64_t>(flops / team.num_threads() / (12 * 8 * 2)) + 1;
  std::atomic<std::uint64_t> done{0};
  auto body = [&](std::uint32_t) noexcept { done.fetch_add(fma_flops(iterations), std::memory_order_relaxed); };
  for (std::uint32_t round = 0; round < rounds; ++round) {
    double k = 0, p = 0;
    const auto run_peak = [&] {
      done = 0;
      const double seconds = seconds_of([&] { team.run(body); });
      p = static_cast<double>(done.load()) / seconds;
    };
    if (round % 2 == 0) run_peak();
    k = flops / bench.multiply_seconds();
    if (round % 2 == 1) run_peak();
    kernel.push_back(k);
    peak.push_back(p);
    ratios.push_back(k / p);
  }
  return {median(kernel), median(peak), median(ratios), flops / median(kernel), "12 chains of fma"};
}

}  // namespace duckfleet::kernels
