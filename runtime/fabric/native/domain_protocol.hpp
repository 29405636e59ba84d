// The host's side of the data plane in one broadcast domain, without sockets, clocks or threads.
//
// In: requests to start, datagrams with their source, the time. Out: datagrams to send, reply vectors in their
// slots. All calls of one object come from one thread at a time. Only make_room() allocates after construction.
//
//   begin(lane, request)      the request's fragments become due, as one broadcast
//   make_room(duties)         before the first request with these duties
//   fill(batch, now)          writes what is due into buffers; until it writes nothing
//   on_datagram(...)          one datagram, of which anything may be wrong: counted by kind and dropped
//   on_time(now)              asks silent ducks for what is missing, with back-off
//   next_time()               when to call on_time again
//   end(lane)                 the vectors are fetched, or the request is given up
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "auth.hpp"
#include "config.hpp"
#include "link.hpp"
#include "parse.hpp"
#include "vector_slot.hpp"
#include "wire.hpp"

namespace duckfleet::fabric {

inline constexpr unsigned kNumLanes = 2;

// One request as every domain sends it. The bytes stay where they are until the request has ended everywhere.
struct Request {
  std::uint32_t step = 0;
  std::uint16_t layer = 0;
  std::uint16_t num_tokens = 0;
  std::uint16_t top_k = 0;
  std::span<const std::byte> routes;
  std::span<const std::byte> activations;

  [[nodiscard]] std::uint32_t message_bytes() const {
    return static_cast<std::uint32_t>(routes.size() + activations.size());
  }
};

// What was last heard about a vector.
enum class Heard : std::uint8_t { kNothing = 0, kAskedAgain = 1, kBusy = 2, kPart = 3, kWhole = 4 };

struct VectorReport {
  std::uint16_t rank = 0;
  std::uint16_t slice = 0;
  std::uint8_t part = wire::kWholeSlice;
  Heard heard = Heard::kNothing;
  std::uint32_t received_bytes = 0;
  std::uint32_t message_bytes = 0;
  std::uint64_t heard_at_us = 0;  // 0: never in this request
  std::uint64_t silent_us = 0;    // since the request, or since the duck was last heard about anything at all
};

struct DuckCounters {
  std::uint64_t replies = 0;
  std::uint64_t latency_sum_us = 0;  // from the request's first datagram to the reply's last
  std::uint64_t latency_last_us = 0;
  std::uint64_t latency_max_us = 0;
  std::uint64_t times_last = 0;  // requests in which this duck's reply was the domain's last
  std::uint64_t probes = 0;      // times it was asked for its reply
  std::uint64_t resends = 0;     // times it asked for parts of a request
  std::uint64_t resent_bytes = 0;
};

struct ProtocolCounters {
  std::array<std::uint64_t, wire::kNumDropReasons> drops{};
  std::uint64_t requests = 0;
};

class DomainProtocol {
 public:
  // Throws std::invalid_argument when the configuration contradicts itself or a key cannot be used here.
  DomainProtocol(const SessionConfig& session, const DomainConfig& domain);

  // Check duties and make slots for them; those under way keep theirs. Throws std::invalid_argument.
  void make_room(const DomainDuties& duties);
  // A duck that started anew has a new key; sequences begin again.
  void rekey(std::size_t duck, std::uint32_t key_id, const KeyBytes& key);

  void begin(unsigned lane, const Request& request, std::uint64_t now_us) { begin(lane, request, duties_, now_us); }
  void begin(unsigned lane, const Request& request, std::shared_ptr<const DomainDuties> duties, std::uint64_t now_us);
  void end(unsigned lane);

  // Datagrams due now, at most as many as `batch` has room for. Returns how many were written; `batch[i].data`
  // points into memory that stays until the next fill().
  std::size_t fill(std::span<OutDatagram> batch, std::uint64_t now_us);
  [[nodiscard]] bool has_due() const { return num_due_ > 0; }
  static constexpr std::size_t kMaxBatch = 32;

  // The lane whose last missing vector this datagram completed, or -1.
  int on_datagram(const InDatagram& datagram, std::uint64_t now_us);

  void on_time(std::uint64_t now_us);
  [[nodiscard]] std::uint64_t next_time_us() const;  // UINT64_MAX: nothing to wait for

  [[nodiscard]] bool active(unsigned lane) const { return lanes_[lane].active; }
  [[nodiscard]] bool complete(unsigned lane) const { return lanes_[lane].num_missing == 0; }
  [[nodiscard]] std::size_t num_vectors() const { return lanes_[0].slots.size(); }
  [[nodiscard]] const VectorSlot& slot(unsigned lane, std::size_t vector) const { return *lanes_[lane].slots[vector]; }

  // The vectors that are still missing in this lane's request.
  void report_missing(unsigned lane, std::uint64_t now_us, std::vector<VectorReport>& out) const;
  // Those of ducks from which nothing came for `silence_us`, though they were asked again and again; longer where ducks
  // of this domain have been slow to answer lately. Ducks that were not asked often enough to tell are asked at once,
  // whatever their back-off.
  void report_silent(unsigned lane, std::uint64_t now_us, std::uint64_t silence_us, std::vector<VectorReport>& out);

  [[nodiscard]] const ProtocolCounters& counters() const { return counters_; }
  [[nodiscard]] std::span<const DuckCounters> duck_counters() const { return duck_counters_; }
  void count_drop(wire::DropReason reason) { ++counters_.drops[static_cast<std::size_t>(reason)]; }

 private:
  static constexpr std::size_t kLatencyClasses = 8;  // by the logarithm of num_tokens

  struct Duck {
    std::uint16_t rank = 0;
    Endpoint endpoint;
    std::uint32_t key_id = 0;
    std::uint64_t sequence = 0;  // of what we send to it alone
    wire::DatagramKey key;
    wire::ReplayWindow window;
    std::array<float, kLatencyClasses> latency_us{};  // smoothed; 0: no sample yet
    std::uint64_t heard_at_us = 0;                    // anything authentic
    std::uint64_t asked_first_us = 0;                 // for a reply, since it was heard
    std::uint64_t asked_at_us = 0;                    // the last time
    std::uint32_t num_unanswered = 0;                 // times it was asked since it was heard
  };

  struct VectorState {
    bool expected = false;
    bool probe_due = false;
    Heard heard = Heard::kNothing;
    std::uint64_t heard_at_us = 0;
    std::uint64_t probe_at_us = 0;
    std::uint64_t back_off_us = 0;
  };

  // What one duck asked to have again. A newer nack replaces what is left of an older one.
  struct Resend {
    std::array<wire::Range, wire::kMaxNackRanges> ranges{};
    std::size_t num_ranges = 0;  // 0: nothing due
    std::size_t next_range = 0;
    std::uint32_t next_offset = 0;
    std::uint64_t spent_bytes = 0;    // asked for by all nacks of this request
    std::uint64_t probes_before = 0;  // times the duck was asked before this request
    std::uint16_t slice = wire::kAsAssigned;  // which of its requests
    std::uint8_t part_mask = 0;
  };

  // A unicast request for vectors that a duck computes on top of its own slice.
  struct Extra {
    std::uint16_t duck = 0;
    std::uint16_t slice = 0;
    std::uint8_t part_mask = 0;
    std::uint32_t next_offset = 0;
  };

  struct Lane {
    bool active = false;
    std::shared_ptr<const DomainDuties> duties;  // of the request
    std::uint32_t last_step = 0;
    Request request;
    std::uint64_t sent_at_us = 0;
    bool broadcast_due = false;
    std::uint32_t next_offset = 0;
    std::size_t num_missing = 0;
    std::vector<std::unique_ptr<VectorSlot>> slots;
    std::vector<VectorState> states;
    std::vector<Resend> resends;  // by duck
    std::vector<Extra> extras;    // of this request; capacity for all of them
    std::size_t next_extra = 0;
  };

  struct Accepted {
    wire::DataHeader header;
    std::span<const std::byte> payload;
    std::size_t duck = 0;
  };

  static constexpr std::size_t kNoVector = SIZE_MAX;

  wire::DropReason accept(const InDatagram& datagram, std::uint64_t now_us, Accepted& in);
  static Extra* find_extra(Lane& lane, std::size_t duck, std::uint16_t slice);
  static std::size_t find_vector(const Lane& lane, const Accepted& in);
  int on_reply(const Accepted& in, std::uint64_t now_us);
  void on_busy(const Accepted& in, std::uint64_t now_us);
  void on_nack(const Accepted& in, std::uint64_t now_us);
  void finish_vector(Lane& lane, std::size_t vector, std::uint64_t now_us);
  void hear(VectorState& state, Heard what, std::uint64_t now_us, std::uint64_t probe_in_us);
  static unsigned latency_class(unsigned num_tokens);
  std::uint64_t first_probe_us(const Duck& duck, unsigned num_tokens) const;
  static std::uint64_t silent_us(const Lane& lane, const Duck& duck, std::uint64_t now_us);
  void hear_from(Duck& duck, std::uint64_t now_us);
  [[nodiscard]] std::uint64_t slowest_us(std::uint64_t now_us) const;
  VectorReport report(const Lane& lane, std::size_t vector, std::uint64_t now_us) const;

  void fill_lane(unsigned lane_index, std::span<OutDatagram> batch, std::size_t& count, std::uint64_t now_us);
  wire::DataHeader header_for(unsigned lane_index, wire::DataKind kind) const;
  OutDatagram put_request(unsigned lane_index, std::size_t buffer, std::uint32_t offset, std::uint32_t bytes,
                          Duck* only, std::uint16_t slice, std::uint8_t part_mask);
  OutDatagram put_probe(unsigned lane_index, std::size_t buffer, std::size_t vector);
  OutDatagram seal(std::size_t buffer, wire::DataHeader& header, Duck* only);
  std::byte* buffer(std::size_t index) { return send_memory_.data() + index * buffer_bytes_; }

  SessionConfig session_;
  std::uint32_t fragment_bytes_;
  Endpoint broadcast_;
  wire::DatagramKey broadcast_key_;
  std::uint32_t broadcast_key_id_;
  std::uint64_t broadcast_sequence_ = 0;
  std::vector<Duck> ducks_;
  std::vector<DuckCounters> duck_counters_;
  std::shared_ptr<const DomainDuties> duties_;  // at the start
  std::array<Lane, kNumLanes> lanes_;
  // The slowest answer to a question that came after all; what it counts for halves with time.
  std::uint64_t slowest_us_ = 0;
  std::uint64_t slowest_at_us_ = 0;
  std::size_t num_due_ = 0;  // jobs that fill() still has to write out
  std::size_t buffer_bytes_;
  std::vector<std::byte> send_memory_;
  ProtocolCounters counters_;
};

}  // namespace duckfleet::fabric
