// The host's fabric: FFN forwards over all domains, two lanes, summed in rank order.
//
// A caller submits on a lane and later waits on it; each lane belongs to one caller at a time. A batch longer than
// one request may be is cut into pieces of whole tokens. One piece of a lane is under way at once; wait() also
// borrows the other lane for its pieces while nobody has a forward there.
//
// Who owes which vector may be changed while requests are under way (`set_duties`): a request keeps the duties with
// which it was sent. When a duck falls silent, wait() asks `on_silence` once and sends the same request again, with the
// same step, if there is somebody else to compute what is missing; what was computed already is not computed again.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "canonical_sum.hpp"
#include "completion.hpp"
#include "config.hpp"
#include "domain_runner.hpp"
#include "median.hpp"

namespace duckfleet::fabric {

struct FabricOptions {
  std::string transport = "udp";
  std::uint32_t spin_us = 0;         // busy polling before blocking, in the waiter and in each worker
  std::uint64_t deadline_us = 0;     // from the moment a request is sent to its last reply
  // A duck is silent that was not heard for the longer of the two: the floor, or so many median forwards of the size.
  std::uint64_t silence_floor_us = 50'000;
  std::uint32_t silence_medians = 20;
  std::uint64_t silence_cold_us = 1'000'000;  // while the median is not known
};

struct ForwardInput {
  std::uint16_t layer = 0;
  std::uint32_t num_tokens = 0;
  std::uint16_t top_k = 0;                 // 0: dense
  const float* x = nullptr;                // [num_tokens, hidden]; must stay until wait() returns
  const std::uint32_t* experts = nullptr;  // [num_tokens, top_k], ascending in each row; must stay too
  const float* weights = nullptr;          // [num_tokens, top_k]; must stay too
};

struct Timing {
  std::uint64_t prepare_ns = 0;
  std::uint64_t send_ns = 0;
  std::uint64_t wait_ns = 0;
  std::uint64_t fetch_ns = 0;
};

enum class Outcome { kDone, kLost, kClosed };

struct LossReport {
  std::uint64_t waited_us = 0;
  std::vector<VectorReport> missing;  // in the order of domains, ducks
};

// Tell whose vectors are missing; true when others have their duties now, so that the request is to be sent again. Called
// by a waiter, outside of any lock; may take long.
using OnSilence = std::function<bool(const LossReport&)>;

class Fabric {
 public:
  // Opens every domain's link; nothing is sent before the first submit. Throws LinkError, std::invalid_argument.
  Fabric(const SessionConfig& session, const std::vector<DomainConfig>& domains, const FabricOptions& options);
  ~Fabric();

  // Throws std::invalid_argument for a layer, shape or routes that cannot be, std::logic_error when the lane has
  // a forward already. False: closed.
  bool submit(unsigned lane, const ForwardInput& input);

  // Blocks until the lane's forward is in `out` [num_tokens, hidden], or failed. The lane is free afterwards.
  Outcome wait(unsigned lane, float* out, Timing& timing, LossReport& loss);

  // Give up the lane's forward without waiting.
  void abandon(unsigned lane);

  // Before the first submit.
  void on_silence(OnSilence handler) { on_silence_ = std::move(handler); }

  // By domain. Throws std::invalid_argument when they contradict themselves or leave a slice without a duck.
  void set_duties(const std::vector<DomainDuties>& domains);

  // A duck has a new key from now on. It must have no duties.
  void rekey(std::size_t domain, std::size_t duck, std::uint32_t key_id, const KeyBytes& key);

  // Of the last request that was sent again: from its first sending to its end.
  [[nodiscard]] std::uint64_t last_pause_us() const { return last_pause_us_.load(std::memory_order_relaxed); }

  // Wakes every waiter (kClosed) and ends the threads. May be called twice, and while others wait.
  void close();

  // Tokens of one piece at most.
  [[nodiscard]] std::uint32_t max_tokens() const { return session_.max_tokens; }
  [[nodiscard]] std::size_t num_domains() const { return runners_.size(); }
  [[nodiscard]] DomainRunner& domain(std::size_t index) { return *runners_[index]; }

 private:
  enum class LaneUse { kFree, kForward, kBorrowed };
  static constexpr std::size_t kSizeClasses = 8;  // by the logarithm of num_tokens

  // Who owes what in all domains, and which slots make up which slice.
  struct Duties {
    std::vector<std::shared_ptr<const DomainDuties>> domains;
    std::array<std::vector<std::vector<SliceVectors>>, kNumLanes> slices_of_layer;  // by lane, layer
  };

  struct Lane {
    LaneUse use = LaneUse::kFree;  // under lanes_mutex_
    ForwardInput input;
    std::uint32_t num_launched = 0;  // tokens of `input` that are under way or done
    Timing timing;
    // Of the request on the wire in this lane.
    Request request;
    std::shared_ptr<const Duties> duties;
    std::uint32_t step = 0;
    std::uint64_t first_launched_at_us = 0;
    std::uint64_t launched_at_us = 0;  // the last time
    std::uint64_t silence_us = 0;
    std::uint64_t suspect_at_us = 0;  // when to look for silent ducks
    std::array<RecentMedian, kSizeClasses> durations_us;
    std::vector<std::byte> routes;
    std::vector<std::byte> converted;
    CanonicalSum sum{wire::kMaxTp};
  };

  struct Piece {
    unsigned lane = 0;  // on the wire
    std::uint32_t first_token = 0;
    std::uint32_t num_tokens = 0;
  };

  void check(const ForwardInput& input) const;
  [[nodiscard]] std::shared_ptr<const Duties> duties() const;
  void send(unsigned wire_lane);
  bool replaced(unsigned wire_lane);
  void finished(Lane& lane);
  Piece launch(Lane& forward, unsigned wire_lane);
  Outcome fetch(const Piece& piece, Lane& forward, float* out, LossReport& loss);
  Outcome finish_pieces(unsigned lane, Piece first, float* out, LossReport& loss);
  bool try_borrow(unsigned lane);
  void release(unsigned lane);
  void end_request(unsigned wire_lane);

  SessionConfig session_;
  FabricOptions options_;
  std::uint32_t num_layers_ = 0;
  std::array<Completion, kNumLanes> completions_;
  std::array<Lane, kNumLanes> lanes_;
  std::vector<std::unique_ptr<DomainRunner>> runners_;
  std::mutex lanes_mutex_;
  std::condition_variable lane_freed_;
  OnSilence on_silence_;
  mutable std::mutex duties_mutex_;
  std::shared_ptr<const Duties> duties_;
  std::atomic<std::uint64_t> last_pause_us_{0};
  std::atomic<bool> closed_{false};
};

}  // namespace duckfleet::fabric
