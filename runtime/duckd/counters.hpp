// What duckd counts. Written by several threads, read by kStats; each number on its own, no snapshot.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "parse.hpp"

namespace duckfleet::duckd {

class Counter {
 public:
  void add(std::uint64_t n = 1) noexcept { value_.fetch_add(n, std::memory_order_relaxed); }
  std::uint64_t get() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// Durations in buckets of a sixteenth of a power of two: quantiles within 7 %.
class Histogram {
 public:
  void record(std::uint64_t nanoseconds) noexcept {
    buckets_[bucket(nanoseconds)].add();
    count_.add();
    total_.add(nanoseconds);
    std::uint64_t seen = max_.load(std::memory_order_relaxed);
    while (nanoseconds > seen && !max_.compare_exchange_weak(seen, nanoseconds, std::memory_order_relaxed)) {
    }
  }

  std::uint64_t count() const noexcept { return count_.get(); }
  std::uint64_t total_ns() const noexcept { return total_.get(); }
  std::uint64_t max_ns() const noexcept { return max_.load(std::memory_order_relaxed); }

  // Lower edge of the bucket that holds the quantile `q` in [0, 1]; 0 when nothing was recorded.
  std::uint64_t quantile_ns(double q) const noexcept {
    const auto wanted = static_cast<std::uint64_t>(q * static_cast<double>(count()));
    std::uint64_t below = 0;
    for (std::size_t i = 0; i < kBuckets; ++i) {
      below += buckets_[i].get();
      if (below > wanted) return lower_edge(i);
    }
    return max_ns();
  }

 private:
  static constexpr std::size_t kBuckets = 61 * 16;

  static std::size_t bucket(std::uint64_t value) noexcept {
    if (value < 16) return value;
    const auto exponent = static_cast<std::size_t>(std::bit_width(value)) - 5;  // so that value >> exponent is 16..31
    return (exponent + 1) * 16 + (value >> exponent) - 16;
  }
  static std::uint64_t lower_edge(std::size_t bucket) noexcept {
    if (bucket < 16) return bucket;
    return (16 + bucket % 16) << (bucket / 16 - 1);
  }

  std::array<Counter, kBuckets> buckets_{};
  Counter count_, total_;
  std::atomic<std::uint64_t> max_{0};
};

struct DataCounters {
  std::array<Counter, wire::kNumDropReasons> drops;
  Counter datagrams, bytes_in, datagrams_sent, bytes_sent, send_failures;
  Counter requests, computed, cancelled, replies, resends, nacks_sent, nacks_received, busy_sent, echoes;
  Counter weight_bytes;   // read for all forwards, counted from the packed size
  Histogram compute;      // one request, all its parts, without waiting for it and without the network
  Histogram turnaround;   // from the fragment that made a request whole to its last reply datagram

  void drop(wire::DropReason reason) noexcept { drops[static_cast<std::size_t>(reason)].add(); }
};

struct ControlCounters {
  Counter connections, closed, evicted, refused, timeouts;
  Counter malformed, wrong_version, auth_failed, auth_missing, unknown_type;
  Counter requests, refusals, chunks_stored, chunk_bytes_received, chunks_refused;
  Counter chunks_fetched, chunks_given;  // from and to other ducks
};

struct ScrubCounters {
  Counter bytes, chunks, passes;  // looked at
  Counter found;                  // chunks whose bytes had changed
};

struct Counters {
  DataCounters data;
  ControlCounters control;
  ScrubCounters scrub;
};

}  // namespace duckfleet::duckd
