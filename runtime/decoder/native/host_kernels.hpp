// The functions of the host's own arithmetic that an implementation (an instruction set) provides. All give the same bits.
//
// The order of every sum is fixed, and a row's result never depends on its neighbours: batches, chunks and threads do
// not change it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace duckfleet::host {

inline constexpr std::uint32_t kLanes = 16;  // positions of a panel of keys; floats that sums run over at a time

constexpr std::uint32_t padded(std::uint32_t n) noexcept { return (n + kLanes - 1) / kLanes * kLanes; }

// Some queries over the cached positions of one key-value head.
struct AttendArgs {
  const float* const* queries;  // [num_rows], head_dim each
  float* const* out;            // [num_rows], head_dim each
  const std::uint32_t* seen;    // [num_rows] positions that a row attends to, ascending, at least 1
  std::uint32_t num_rows;       // at most kMaxRows
  std::uint32_t head_dim;
  const float* keys;    // panels of 16 positions: [panels][head_dim][16]
  const float* values;  // [positions][padded(head_dim)]
  float scale;          // of the scores
  float* scores;        // scratch, [kMaxRows][padded(seen of the last row)], 64-byte aligned
};

inline constexpr std::uint32_t kMaxRows = 6;

struct HostKernels {
  const char* name;
  // out = x / rms(x) * weight, the mean of squares over n with eps added.
  void (*rms_norm)(const float* x, const float* weight, float eps, std::uint32_t n, float* out) noexcept;
  // x += y
  void (*add)(float* x, const float* y, std::uint32_t n) noexcept;
  // Rotates the pairs (i, i + half) of x.
  void (*rotate)(float* x, const float* cos, const float* sin, std::uint32_t half) noexcept;
  // softmax(query . keys * scale) . values, for every row.
  void (*attend)(const AttendArgs& args) noexcept;
};

const HostKernels& scalar_host_kernels() noexcept;
const HostKernels& avx2_host_kernels() noexcept;

// By the name of the matrix kernels in use, so that one choice rules both.
const HostKernels& host_kernels(const char* implementation) noexcept;

}  // namespace duckfleet::host
