// Looks for flipped bits in the stored chunks, one after another, for ever: in the time that nobody else wants
// (SCHED_IDLE), and no faster than a bound, so that it takes no part of the memory's bandwidth worth mentioning.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include "chunk_store.hpp"
#include "counters.hpp"

namespace duckfleet::duckd {

class Scrub {
 public:
  // Runs from now on; 0 bytes a second: not at all.
  Scrub(ChunkStore& store, ScrubCounters& counters, std::uint64_t bytes_per_s);
  ~Scrub();
  Scrub(const Scrub&) = delete;
  Scrub& operator=(const Scrub&) = delete;

 private:
  void run();
  // Both false when it is time to end.
  bool look_at(const StoredChunk& chunk);
  bool pause(std::uint64_t num_bytes);

  ChunkStore& store_;
  ScrubCounters& counters_;
  const std::uint64_t bytes_per_s_;
  std::uint64_t unpaid_bytes_ = 0;  // looked at since the last pause
  std::mutex mutex_;
  std::condition_variable ending_;
  bool end_ = false;
  std::thread thread_;
};

}  // namespace duckfleet::duckd
