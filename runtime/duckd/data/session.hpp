// A session as the data plane knows it: who the host is, the keys, and the fixed places of requests under way.
//
// Ownership: the data thread owns lanes and slots. While it computes one, its team reads the slot's assembly and writes
// its results.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "assembly.hpp"
#include "auth.hpp"
#include "page_buffer.hpp"
#include "shard.hpp"
#include "transport.hpp"
#include "wire.hpp"

namespace duckfleet::duckd {

using Clock = std::chrono::steady_clock;

// One f32 vector [num_tokens, hidden] that answers a request.
struct ResultVector {
  std::uint16_t slice = 0;
  std::uint8_t part = 0;  // or kWholeSlice
  PageBuffer memory;

  std::span<float> values(std::size_t count) noexcept { return {reinterpret_cast<float*>(memory.bytes().data()), count}; }
};

// kQueued: whole; waits, or is computed. A kAssembling one may be computed as well.
enum class SlotState : std::uint8_t { kFree, kAssembling, kQueued, kDone };

struct Slot {
  SlotState state = SlotState::kFree;
  std::uint64_t epoch = 0;  // which message is here; what was planned for an earlier one is void
  Assembly assembly;
  bool cancelled = false;   // the host has moved on while it was computed
  bool stalled = false;     // begun early, then left: not to be begun again before it is whole
  Clock::time_point fragment_at;  // the last new one
  Clock::time_point whole_at;

  std::array<ResultVector, 8> vectors;
  std::size_t num_vectors = 0;

  Clock::time_point nack_at;
  std::chrono::microseconds nack_after{0};
  std::uint32_t num_nacks = 0;
};

struct Lane {
  std::uint32_t last_step = 0;
  // The request under way, one that waits, and room for what a failover asks for beside them: a slot for each slice of
  // which this duck computes parts. Their memory is taken when it is used.
  std::array<Slot, 8> slots;
};

struct SessionKey {
  wire::DatagramKey key;
  std::uint32_t id;
  wire::ReplayWindow window;  // of what the host sends
};

class Session {
 public:
  // `config` has passed check_session(). Null, and a refusal, when there is no memory for the slots.
  static std::shared_ptr<Session> create(const wire::Configure& config, std::shared_ptr<const Shard> shard,
                                         wire::Refusal& refusal);

  const wire::Configure& config() const noexcept { return config_; }
  // What it returned stays as long as the session.
  const Shard& shard() const noexcept { return *shard_.load(std::memory_order_acquire); }
  // From now on these parts are served too: `shard` extends the present one. One caller at a time.
  void extend(std::shared_ptr<const Shard> shard);
  const Peer& host() const noexcept { return host_; }
  const wire::DatagramKey& duck_key() const noexcept { return duck_key_.key; }
  std::uint64_t take_sequence() noexcept { return next_sequence_.fetch_add(1, std::memory_order_relaxed); }

  // Session, generation, rank, key, replay, tag. `bytes` is the whole datagram; its tag is zeroed.
  wire::DropReason admit(const wire::Datagram& datagram, std::span<std::byte> bytes, const Peer& from) noexcept;

  // A header of ours about the message that `about` names.
  wire::DataHeader header_for(wire::DataKind kind, const wire::DataHeader& about) const noexcept;

  std::array<Lane, 2> lanes;

 private:
  Session(const wire::Configure& config, std::shared_ptr<const Shard> shard, wire::DatagramKey domain_key,
          wire::DatagramKey duck_key);

  wire::Configure config_;
  std::vector<std::shared_ptr<const Shard>> shards_;  // the present one is the last; requests may still read others
  std::atomic<const Shard*> shard_;
  Peer host_;
  SessionKey domain_key_, duck_key_;
  std::atomic<std::uint64_t> next_sequence_{1};
};

}  // namespace duckfleet::duckd
