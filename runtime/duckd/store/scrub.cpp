#include "scrub.hpp"

#include <sched.h>

#include <algorithm>
#include <chrono>

#include "checksum.hpp"
#include "log.hpp"

namespace duckfleet::duckd {
namespace {

constexpr std::size_t kPieceBytes = 1 << 20;
// An empty store, or one of a few small chunks, is not looked at more often than this.
constexpr std::chrono::milliseconds kBetweenPasses{1000};

}  // namespace

Scrub::Scrub(ChunkStore& store, ScrubCounters& counters, std::uint64_t bytes_per_s)
    : store_(store), counters_(counters), bytes_per_s_(bytes_per_s) {
  if (bytes_per_s_ != 0) thread_ = std::thread([this] { run(); });
}

Scrub::~Scrub() {
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  ending_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Scrub::run() {
  const sched_param none{};
  sched_setscheduler(0, SCHED_IDLE, &none);  // of this thread; needs no privilege
  for (;;) {
    for (const Digest& digest : store_.digests()) {
      const auto chunk = store_.find(digest);
      if (chunk && !look_at(*chunk)) return;
    }
    counters_.passes.add();
    std::unique_lock lock(mutex_);
    if (ending_.wait_for(lock, kBetweenPasses, [this] { return end_; })) return;
  }
}

bool Scrub::look_at(const StoredChunk& chunk) {
  const std::uint32_t num_mends = chunk.num_mends;
  const auto bytes = chunk.memory.bytes().first(chunk.packed.packed_bytes());
  Checksum sum;
  for (std::size_t at = 0; at < bytes.size(); at += kPieceBytes) {
    const auto piece = bytes.subspan(at, std::min(kPieceBytes, bytes.size() - at));
    sum.update(piece);
    counters_.bytes.add(piece.size());
    if (!pause(piece.size())) return false;
  }
  counters_.chunks.add();
  if (sum.finish() != chunk.checksum && store_.report_damage(chunk.digest, num_mends)) {
    counters_.found.add();
    log_error("chunk_damaged").with("digest", to_hex(chunk.digest)).with("layer", chunk.packed.layer());
  }
  return true;
}

bool Scrub::pause(std::uint64_t num_bytes) {
  unpaid_bytes_ += num_bytes;
  std::unique_lock lock(mutex_);
  if (unpaid_bytes_ < kPieceBytes) return !end_;  // few wake-ups, however small the chunks
  const std::chrono::duration<double> due(static_cast<double>(unpaid_bytes_) / static_cast<double>(bytes_per_s_));
  unpaid_bytes_ = 0;
  return !ending_.wait_for(lock, due, [this] { return end_; });
}

}  // namespace duckfleet::duckd
