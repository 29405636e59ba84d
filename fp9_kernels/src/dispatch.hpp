// Which implementations this CPU can run, and the choice of one.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels.hpp"

namespace duckfleet::kernels {

// Usable on this CPU, slowest first.
std::span<const Kernels* const> implementations() noexcept;

struct Selected {
  const Kernels* kernels = nullptr;  // null: `error` says why
  std::string error;
};

// Empty name: the environment's DUCKFLEET_KERNELS, else the fastest. A name that is unknown, or that this CPU cannot
// run, is an error; there is no fallback.
Selected select(std::string_view name);

struct CpuFeatures {
  bool avx2, fma, f16c, avx512f, avx512bw, avx512vl, avx_vnni, aes, pclmul;
};
CpuFeatures cpu_features() noexcept;

}  // namespace duckfleet::kernels
