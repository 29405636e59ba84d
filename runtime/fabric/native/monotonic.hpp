// The clock that every time in the fabric is read from.
#pragma once

#include <chrono>
#include <cstdint>

namespace duckfleet::fabric {

inline std::uint64_t now_us() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

inline void relax_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace duckfleet::fabric
