// What `duckctl bench kernels` measures: kernels against the machine's own limits, interleaved in one run.
#pragma once

#include <cstdint>
#include <string>

#include "kernels.hpp"
#include "team.hpp"

namespace duckfleet::kernels {

// Median over rounds of one measured thing and of its limit, and the median of their ratios round by round.
struct Measured {
  double value;      // bytes/s or flop/s of the kernel
  double limit;      // the same unit: read limit or FMA peak
  double ratio;      // value / limit, median over rounds
  double seconds;    // of one call of the kernel, median
  std::string how;   // which read loop was the best
};

// A product with num_tokens vectors, weights out of cache, against the best of the read loops on the same threads.
Measured measure_gemv(const Kernels& kernels, Team& team, Format format, std::uint32_t num_tokens, std::uint32_t rounds,
                      std::uint64_t bytes_a_call);

// The same against the FMA peak of the same threads.
Measured measure_gemm(const Kernels& kernels, Team& team, Format format, std::uint32_t num_tokens, std::uint32_t rounds,
                      std::uint64_t bytes_a_call);

// Loops compiled for AVX2 (avx2/limits.cpp); the caller checks the CPU.
inline constexpr std::uint32_t kReadAhead[] = {0, 1024, 2048, 4096, 8192};  // bytes prefetched ahead, by loop
std::uint64_t read_all(std::uint32_t loop, const std::byte* data, std::uint64_t bytes) noexcept;
std::uint64_t fma_flops(std::uint64_t iterations) noexcept;  // runs that many, returns the flops done

}  // namespace duckfleet::kernels
