// What this duck is assigned and which session it serves: the two-step agreement between host and duck.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>

#include "chunk_store.hpp"
#include "control_frame.hpp"
#include "session.hpp"
#include "shard.hpp"

namespace duckfleet::duckd {

class Placement {
 public:
  // `install` makes a session (null: none) the served one.
  Placement(ChunkStore& store, std::function<void(std::shared_ptr<Session>)> install);

  // Takes up the assignment that an earlier process kept, when its chunks are all here.
  void resume();

  // Payloads of kAssign and kConfigure.
  std::optional<wire::Refusal> assign(std::span<const std::byte> payload);
  std::optional<wire::Refusal> configure(std::span<const std::byte> payload);

  bool uses(const Digest& digest) const;

  // Gives up an assignment that has chunks which are not among these, and its session.
  void release_unless_within(const std::set<Digest>& kept);

  // Ends the session and forgets the assignment.
  void clear();

  struct State {
    std::shared_ptr<const Shard> shard;
    std::uint64_t session = 0;
    std::uint32_t generation = 0;
    std::uint32_t plan_generation = 0;
  };
  State state() const;

 private:
  std::optional<wire::Refusal> take(std::span<const std::byte> payload);

  ChunkStore& store_;
  const std::function<void(std::shared_ptr<Session>)> install_;
  mutable std::mutex mutex_;
  State state_;
  std::shared_ptr<Session> session_;  // the served one
};

}  // namespace duckfleet::duckd
