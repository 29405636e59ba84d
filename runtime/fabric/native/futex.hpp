// Sleeping on a 32-bit word with a time limit, which std::atomic::wait does not offer.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>

namespace duckfleet::fabric {

// Returns when woken, when the word is no longer `seen`, when time is up, or for no reason.
inline void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t seen, std::uint64_t timeout_us) {
  const timespec timeout = {static_cast<time_t>(timeout_us / 1'000'000),
                            static_cast<long>(timeout_us % 1'000'000 * 1000)};
  ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, &timeout, nullptr, 0);
}

inline void futex_wake_all(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace duckfleet::fabric
