// What time alone brings: when to ask again, and when a duck is silent.
#include "domain_protocol.hpp"

#include <algorithm>
#include <bit>

namespace duckfleet::fabric {
namespace {

// A duck is not called silent before it was asked this often without an answer, and had this long for the last one:
// time in which this host itself stood still is no evidence against anybody.
constexpr std::uint32_t kMinUnanswered = 3;
constexpr std::uint64_t kLastAnswerUs = 5'000;

// A duck that has answered late is a slow one, and another may be slower still: where ducks lack CPU time, or their network
// is crowded, silence means little. Longer gaps than the longest are no slowness but a duck that was away.
constexpr std::uint64_t kSlowness = 4;
constexpr std::uint64_t kLongestSlownessUs = 1'000'000;
constexpr std::uint64_t kSlownessHalvesUs = 60'000'000;

}  // namespace

unsigned DomainProtocol::latency_class(unsigned num_tokens) {
  return std::min(static_cast<unsigned>(std::bit_width(num_tokens)), static_cast<unsigned>(kLatencyClasses)) - 1;
}

void DomainProtocol::hear_from(Duck& duck, std::uint64_t now_us) {
  duck.heard_at_us = now_us;
  if (duck.num_unanswered == 0) return;
  duck.num_unanswered = 0;
  const std::uint64_t took_us = now_us - std::min(now_us, duck.asked_first_us);
  if (took_us > kLongestSlownessUs || took_us < slowest_us(now_us)) return;
  slowest_us_ = took_us;
  slowest_at_us_ = now_us;
}

std::uint64_t DomainProtocol::slowest_us(std::uint64_t now_us) const {
  const std::uint64_t halvings = (now_us - std::min(now_us, slowest_at_us_)) / kSlownessHalvesUs;
  return halvings < 64 ? slowest_us_ >> halvings : 0;
}

std::uint64_t DomainProtocol::first_probe_us(const Duck& duck, unsigned num_tokens) const {
  const float usual = duck.latency_us[latency_class(num_tokens)];
  const std::uint64_t wanted = session_.timers.min_probe_us + static_cast<std::uint64_t>(2.0F * usual);
  return std::min<std::uint64_t>(wanted, session_.timers.max_probe_us);
}

void DomainProtocol::on_time(std::uint64_t now_us) {
  for (Lane& lane : lanes_) {
    if (!lane.active || lane.num_missing == 0 || lane.broadcast_due) continue;
    for (std::size_t v = 0; v < lane.states.size(); ++v) {
      VectorState& state = lane.states[v];
      if (!state.expected || state.probe_due || now_us < state.probe_at_us || lane.slots[v]->complete()) continue;
      state.probe_due = true;
      ++num_due_;
      state.back_off_us = std::clamp<std::uint64_t>(2 * state.back_off_us, session_.timers.min_probe_us,
                                                    session_.timers.max_probe_us);
      state.probe_at_us = now_us + state.back_off_us;
    }
  }
}

std::uint64_t DomainProtocol::next_time_us() const {
  std::uint64_t next = UINT64_MAX;
  for (const Lane& lane : lanes_) {
    if (!lane.active || lane.num_missing == 0 || lane.broadcast_due) continue;
    for (std::size_t v = 0; v < lane.states.size(); ++v) {
      const VectorState& state = lane.states[v];
      if (state.expected && !state.probe_due && !lane.slots[v]->complete()) next = std::min(next, state.probe_at_us);
    }
  }
  return next;
}

std::uint64_t DomainProtocol::silent_us(const Lane& lane, const Duck& duck, std::uint64_t now_us) {
  if (lane.sent_at_us == 0 || lane.broadcast_due) return 0;
  const std::uint64_t since_us = std::max(lane.sent_at_us, duck.heard_at_us);
  return now_us - std::min(now_us, since_us);
}

VectorReport DomainProtocol::report(const Lane& lane, std::size_t v, std::uint64_t now_us) const {
  const VectorSpec& spec = lane.duties->vectors[v];
  const VectorState& state = lane.states[v];
  return {.rank = ducks_[spec.duck].rank,
          .slice = spec.slice,
          .part = spec.part,
          .heard = state.heard,
          .received_bytes = lane.slots[v]->received_bytes(),
          .message_bytes = lane.slots[v]->message_bytes(),
          .heard_at_us = state.heard_at_us,
          .silent_us = silent_us(lane, ducks_[spec.duck], now_us)};
}

void DomainProtocol::report_missing(unsigned lane_index, std::uint64_t now_us, std::vector<VectorReport>& out) const {
  const Lane& lane = lanes_[lane_index];
  if (!lane.active) return;
  for (std::size_t v = 0; v < lane.states.size(); ++v) {
    if (lane.states[v].expected && !lane.slots[v]->complete()) out.push_back(report(lane, v, now_us));
  }
}

void DomainProtocol::report_silent(unsigned lane_index, std::uint64_t now_us, std::uint64_t silence_us,
                                   std::vector<VectorReport>& out) {
  Lane& lane = lanes_[lane_index];
  if (!lane.active) return;
  silence_us = std::max(silence_us, std::min(kSlowness * slowest_us(now_us), kLongestSlownessUs));
  for (std::size_t v = 0; v < lane.states.size(); ++v) {
    VectorState& state = lane.states[v];
    if (!state.expected || lane.slots[v]->complete()) continue;
    const Duck& duck = ducks_[lane.duties->vectors[v].duck];
    if (silent_us(lane, duck, now_us) < silence_us) continue;
    if (duck.num_unanswered < kMinUnanswered) {
      state.probe_at_us = std::min(state.probe_at_us, duck.asked_at_us + session_.timers.min_probe_us);
    } else if (now_us >= duck.asked_at_us + kLastAnswerUs) {
      out.push_back(report(lane, v, now_us));
    }
  }
}

}  // namespace duckfleet::fabric
