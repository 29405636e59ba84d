// Fixed kernels, the very ones that serve, for long enough to pass the turbo window: what this box computes in earnest.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "affinity.hpp"
#include "dispatch.hpp"
#include "matrix.hpp"
#include "report.hpp"
#include "team.hpp"

namespace duckfleet::duckd::probe {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kCols = 4096;
constexpr std::uint64_t kMaxBytes = 96u << 20;  // of weights: far from every cache
constexpr std::uint64_t kMinBytes = 16u << 20;
constexpr std::uint32_t kSpinUs = 50;
constexpr std::uint32_t kNumCodes = 120;  // e4m3 codes below NaN; as fp9 bodies they are finite too

// A matrix of about so many bytes whose codes repeat a pattern: the kernels take as long for any codes.
std::optional<kernels::PackedMatrix> pattern_matrix(kernels::Format format, std::uint64_t bytes) {
  const auto num_rows = static_cast<std::uint32_t>(bytes / kCols / 128 * 128);
  std::vector<std::byte> codes(std::size_t{num_rows} * kCols);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>((i * 37 + i / 4096) % kNumCodes);
  std::vector<std::byte> signs(codes.size() / 8, std::byte{0x5A});
  const std::vector<float> scales(std::size_t{num_rows / 128} * (kCols / 128), 1e-3f);
  std::optional<kernels::Position> bad;
  kernels::PackedMatrix matrix({format, codes.data(), signs.data()}, reinterpret_cast<const std::byte*>(scales.data()), 0,
                               num_rows, 0, kCols, bad);
  if (bad) return std::nullopt;
  return matrix;
}

// GB/s of products with one vector, a figure a second.
Json rates(const kernels::Kernels& implementation, kernels::Team& team, const kernels::PackedMatrix& matrix, unsigned seconds) {
  const std::uint32_t num_rows = static_cast<std::uint32_t>(matrix.shape().num_rows);
  std::vector<float> x(kCols), y(num_rows);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(static_cast<int>(i % 17) - 8) * 0.1f;
  kernels::MatrixWorkspace workspace;
  kernels::multiply(implementation, team, matrix, x.data(), 1, y.data(), workspace);  // touches everything once
  Json list = Json::array();
  for (unsigned i = 0; i < seconds; ++i) {
    const auto start = Clock::now();
    std::uint64_t num_calls = 0;
    std::chrono::duration<double> took{};
    do {
      kernels::multiply(implementation, team, matrix, x.data(), 1, y.data(), workspace);
      ++num_calls;
      took = Clock::now() - start;
    } while (took < std::chrono::seconds(1));
    list.push_back(static_cast<double>(num_calls * matrix.num_bytes()) / took.count() / 1e9);
  }
  return list;
}

}  // namespace

void add_kernels(Report& report, unsigned seconds) {
  const kernels::Selected selected = kernels::select("");
  if (selected.kernels == nullptr) return report.unknown("measured.kernels", selected.error);
  const Json available = report.values["memory"].value("available_bytes", Json(nullptr));
  const std::uint64_t bytes = available.is_number() ? std::min<std::uint64_t>(kMaxBytes, available.get<std::uint64_t>() / 8) : 0;
  if (bytes < kMinBytes) return report.unknown("measured.kernels", "less than 128 MiB of memory is free to measure with");
  const auto cpus = allowed_cpus();
  kernels::Team team(static_cast<std::uint32_t>(std::max<std::size_t>(1, cpus.size())), cpus, kSpinUs);
  Json figures = Json::object();
  for (const auto& [name, format] : {std::pair{"e4m3_gemv", kernels::Format::kE4m3}, {"fp9_gemv", kernels::Format::kFp9}}) {
    const auto matrix = pattern_matrix(format, bytes);
    if (!matrix) return report.unknown("measured.kernels", "the pattern is no matrix");
    figures[name] = rates(*selected.kernels, team, *matrix, std::max(1u, seconds / 2));
  }
  report.took("measured.kernels", "products with one vector by every core");
  report.values["measured"]["kernels"] = {{"implementation", selected.kernels->name}, {"gb_per_s", std::move(figures)}};
}

}  // namespace duckfleet::duckd::probe
