// Tells the thread that waits for a lane that every domain has its vectors.
#pragma once

#include <atomic>
#include <cstdint>

#include "futex.hpp"

namespace duckfleet::fabric {

class Completion {
 public:
  void arm(std::uint32_t num_domains) { domains_left_.store(num_domains, std::memory_order_relaxed); }

  void domain_done() {
    if (domains_left_.fetch_sub(1, std::memory_order_acq_rel) == 1) notify();
  }

  [[nodiscard]] bool done() const { return domains_left_.load(std::memory_order_acquire) == 0; }

  // Make a sleeper look again.
  void notify() {
    turn_.fetch_add(1);
    if (num_sleepers_.load() > 0) futex_wake_all(turn_);
  }

  // Take the turn before looking at whatever is awaited, then sleep with it: nothing is missed in between.
  [[nodiscard]] std::uint32_t turn() const { return turn_.load(); }
  void sleep(std::uint32_t turn, std::uint64_t timeout_us) {
    num_sleepers_.fetch_add(1);
    futex_wait(turn_, turn, timeout_us);
    num_sleepers_.fetch_sub(1);
  }

 private:
  std::atomic<std::uint32_t> domains_left_{0};
  std::atomic<std::uint32_t> turn_{0};
  std::atomic<std::uint32_t> num_sleepers_{0};
};

}  // namespace duckfleet::fabric
