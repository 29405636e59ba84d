// What comes in: whether it is for us, and what it changes.
#include "domain_protocol.hpp"

#include <algorithm>
#include <cstring>

namespace duckfleet::fabric {
namespace {

using wire::DataHeader;
using wire::DataKind;
using wire::DropReason;

constexpr float kLatencyWeight = 0.125F;  // of the newest sample, as in RFC 6298

// A duck asks for one request at most 12 times of its own accord (docs/wire.md), and once for each time we asked it.
constexpr std::uint64_t kNacksARequest = 16;

}  // namespace

int DomainProtocol::on_datagram(const InDatagram& datagram, std::uint64_t now_us) {
  Accepted in;
  if (const DropReason reason = accept(datagram, now_us, in); reason != DropReason::kNone) {
    count_drop(reason);
    return -1;
  }
  switch (static_cast<DataKind>(in.header.kind)) {
    case DataKind::kReply: return on_reply(in, now_us);
    case DataKind::kBusy: on_busy(in, now_us); break;
    default: on_nack(in, now_us); break;
  }
  return -1;
}

DropReason DomainProtocol::accept(const InDatagram& datagram, std::uint64_t now_us, Accepted& in) {
  if (datagram.truncated) return DropReason::kTooLong;
  const wire::Datagram parsed = wire::classify({datagram.data, datagram.bytes});
  if (!parsed.ok()) return parsed.drop;
  const auto sender = std::find_if(ducks_.begin(), ducks_.end(),
                                   [&](const Duck& d) { return d.endpoint == datagram.from; });
  if (sender == ducks_.end()) return DropReason::kForeignAddress;
  in.header = parsed.header;
  in.payload = parsed.payload;
  in.duck = static_cast<std::size_t>(sender - ducks_.begin());
  const DataHeader& h = in.header;
  const DataKind kind = parsed.kind();
  if (kind != DataKind::kReply && kind != DataKind::kBusy && kind != DataKind::kNackRequest) {
    return DropReason::kWrongDirection;
  }
  if (h.session != session_.session) return DropReason::kWrongSession;
  if (h.generation != session_.generation) {
    return h.generation < session_.generation ? DropReason::kStaleGeneration : DropReason::kWrongGeneration;
  }
  if (h.rank != sender->rank) return DropReason::kWrongRank;
  if (session_.tag_algorithm != wire::TagAlgorithm::kNone) {
    if (h.key_id != sender->key_id) return DropReason::kUnknownKey;
    switch (sender->window.check(h.sequence)) {
      case wire::ReplayWindow::Verdict::kFresh: break;
      case wire::ReplayWindow::Verdict::kReplayed: return DropReason::kReplayed;
      case wire::ReplayWindow::Verdict::kTooOld: return DropReason::kTooOld;
    }
    if (!sender->key.verify({datagram.data, datagram.bytes}, wire::Direction::kDuckToHost)) return DropReason::kBadTag;
    sender->window.accept(h.sequence);
  }
  hear_from(*sender, now_us);
  if (h.hidden != session_.hidden) return DropReason::kWrongShape;
  const Lane& lane = lanes_[h.lane];
  if (!lane.active || h.step != lane.last_step) {
    return h.step <= lane.last_step ? DropReason::kStaleStep : DropReason::kUnknownMessage;
  }
  if (h.layer != lane.request.layer || h.num_tokens != lane.request.num_tokens) return DropReason::kConflicting;
  return DropReason::kNone;
}

DomainProtocol::Extra* DomainProtocol::find_extra(Lane& lane, std::size_t duck, std::uint16_t slice) {
  const auto found = std::find_if(lane.extras.begin(), lane.extras.end(),
                                  [&](const Extra& e) { return e.duck == duck && e.slice == slice; });
  return found != lane.extras.end() ? &*found : nullptr;
}

std::size_t DomainProtocol::find_vector(const Lane& lane, const Accepted& in) {
  const auto& specs = lane.duties->vectors;
  for (std::size_t v = 0; v < specs.size(); ++v) {
    const VectorSpec& spec = specs[v];
    if (spec.duck == in.duck && spec.slice == in.header.slice && spec.part == in.header.part) return v;
  }
  return kNoVector;
}

int DomainProtocol::on_reply(const Accepted& in, std::uint64_t now_us) {
  Lane& lane = lanes_[in.header.lane];
  const std::size_t v = find_vector(lane, in);
  if (v == kNoVector || !lane.states[v].expected) {
    count_drop(DropReason::kUnknownMessage);
    return -1;
  }
  VectorState& state = lane.states[v];
  switch (lane.slots[v]->take(in.header.offset, in.payload)) {
    case VectorSlot::Take::kProgress:
      hear(state, Heard::kPart, now_us, std::max<std::uint64_t>(session_.timers.gap_us, state.back_off_us));
      return -1;
    case VectorSlot::Take::kComplete:
      hear(state, Heard::kWhole, now_us, 0);
      finish_vector(lane, v, now_us);
      return lane.num_missing == 0 ? in.header.lane : -1;
    case VectorSlot::Take::kDuplicate: count_drop(DropReason::kDuplicateFragment); return -1;
    case VectorSlot::Take::kMisfit: count_drop(DropReason::kBadLength); return -1;
    case VectorSlot::Take::kTooScattered: count_drop(DropReason::kNoSlot); return -1;
  }
  return -1;
}

void DomainProtocol::on_busy(const Accepted& in, std::uint64_t now_us) {
  Lane& lane = lanes_[in.header.lane];
  // A duck is busy with a request, not with a vector: it says so about every vector it owes us of this slice.
  bool any = false;
  for (std::size_t v = 0; v < lane.states.size(); ++v) {
    VectorState& state = lane.states[v];
    if (!state.expected || lane.duties->vectors[v].duck != in.duck || lane.slots[v]->complete()) continue;
    if (in.header.slice != wire::kAsAssigned && in.header.slice != lane.duties->vectors[v].slice) continue;
    const std::uint64_t usual_us = first_probe_us(ducks_[in.duck], lane.request.num_tokens);
    hear(state, std::max(state.heard, Heard::kBusy), now_us, std::max(usual_us, state.back_off_us));
    any = true;
  }
  if (!any) count_drop(DropReason::kUnknownMessage);
}

void DomainProtocol::on_nack(const Accepted& in, std::uint64_t now_us) {
  Lane& lane = lanes_[in.header.lane];
  const std::uint32_t total = lane.request.message_bytes();
  Resend& r = lane.resends[in.duck];
  const bool was_due = r.num_ranges > 0;
  std::size_t count = 0;
  std::uint64_t bytes = 0;
  std::uint32_t covered = 0;  // ranges ascend: what is below was asked for already, and is sent once
  const std::size_t num_ranges = in.payload.size() / sizeof(wire::Range);
  for (std::size_t i = 0; i < num_ranges; ++i) {
    wire::Range range;
    std::memcpy(&range, in.payload.data() + i * sizeof range, sizeof range);
    if (range.bytes == 0 || range.offset >= total) continue;
    // Whole units, as fragments must be cut.
    const std::uint32_t begin =
        std::max(covered, range.offset / wire::kFragmentUnitBytes * wire::kFragmentUnitBytes);
    std::uint32_t end = range.bytes < total - range.offset ? range.offset + range.bytes : total;
    end = std::min(total, (end + wire::kFragmentUnitBytes - 1) / wire::kFragmentUnitBytes * wire::kFragmentUnitBytes);
    if (begin >= end) continue;
    covered = end;
    bytes += end - begin;
    if (count > 0 && r.ranges[count - 1].offset + r.ranges[count - 1].bytes == begin) {
      r.ranges[count - 1].bytes += end - begin;
    } else {
      r.ranges[count++] = {begin, end - begin};
    }
  }
  if (num_ranges == 0) {
    r.ranges[count++] = {0, total};
    bytes = total;
  }
  if (count == 0) {
    if (was_due) --num_due_;
    r.num_ranges = 0;
    count_drop(DropReason::kBadLength);
    return;
  }
  const auto num_requests = 1 + std::ranges::count(lane.extras, in.duck, &Extra::duck);
  const std::uint64_t nacks =
      kNacksARequest * static_cast<std::uint64_t>(num_requests) + duck_counters_[in.duck].probes - r.probes_before;
  if (r.spent_bytes + bytes > nacks * total) {  // a broken duck must not turn its small datagrams into our large ones
    if (was_due) --num_due_;
    r.num_ranges = 0;
    count_drop(DropReason::kRateLimited);
    return;
  }
  r.spent_bytes += bytes;
  // A duck names the request itself, or (when it has nothing of it) the vector that it was asked for.
  const bool own = in.header.slice == wire::kAsAssigned || in.header.part == wire::kWholeSlice;
  const Extra* const extra = own ? nullptr : find_extra(lane, in.duck, in.header.slice);
  r.num_ranges = count;
  r.next_range = 0;
  r.next_offset = r.ranges[0].offset;
  r.slice = extra != nullptr ? extra->slice : wire::kAsAssigned;
  r.part_mask = extra != nullptr ? extra->part_mask : 0xFF;
  if (!was_due) ++num_due_;
  ++duck_counters_[in.duck].resends;
  for (std::size_t v = 0; v < lane.states.size(); ++v) {
    VectorState& state = lane.states[v];
    if (!state.expected || lane.duties->vectors[v].duck != in.duck || lane.slots[v]->complete()) continue;
    const std::uint64_t usual_us = first_probe_us(ducks_[in.duck], lane.request.num_tokens);
    hear(state, std::max(state.heard, Heard::kAskedAgain), now_us, std::max(usual_us, state.back_off_us));
  }
}

void DomainProtocol::hear(VectorState& state, Heard what, std::uint64_t now_us, std::uint64_t probe_in_us) {
  state.heard = what;
  state.heard_at_us = now_us;
  state.probe_at_us = now_us + probe_in_us;
  if (state.probe_due) {
    state.probe_due = false;
    --num_due_;
  }
}

void DomainProtocol::finish_vector(Lane& lane, std::size_t vector, std::uint64_t now_us) {
  --lane.num_missing;
  const std::size_t d = lane.duties->vectors[vector].duck;
  DuckCounters& counters = duck_counters_[d];
  const std::uint64_t latency_us = now_us - std::min(now_us, lane.sent_at_us);
  ++counters.replies;
  counters.latency_sum_us += latency_us;
  counters.latency_last_us = latency_us;
  counters.latency_max_us = std::max(counters.latency_max_us, latency_us);
  if (lane.num_missing == 0) ++counters.times_last;
  float& usual = ducks_[d].latency_us[latency_class(lane.request.num_tokens)];
  const auto sample = static_cast<float>(latency_us);
  usual = usual == 0.0F ? sample : usual + kLatencyWeight * (sample - usual);
}

}  // namespace duckfleet::fabric
