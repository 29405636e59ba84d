#include "domain_protocol.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

namespace duckfleet::fabric {
namespace {

using wire::DataHeader;
using wire::DataKind;
using wire::DropReason;

// On a wire a duck begins with the first fragment, so that is a short one. A fragment longer than any Ethernet frame
// means that there is no wire.
constexpr std::uint32_t kLongestOnWire = 9216;
constexpr std::uint32_t kFirstFragmentBytes = 4096;

constexpr float kLatencyWeight = 0.125F;  // of the newest sample, as in RFC 6298

// A duck asks for one request at most 12 times of its own accord (docs/wire.md), and once for each time we asked it.
constexpr std::uint64_t kNacksARequest = 16;

// A duck is not called silent before it was asked this often without an answer, and had this long for the last one:
// time in which this host itself stood still is no evidence against anybody.
constexpr std::uint32_t kMinUnanswered = 3;
constexpr std::uint64_t kLastAnswerUs = 5'000;

// A duck that has answered late is a slow one, and another may be slower still: where ducks lack CPU time, or their network
// is crowded, silence means little. Longer gaps than the longest are no slowness but a duck that was away.
constexpr std::uint64_t kSlowness = 4;
constexpr std::uint64_t kLongestSlownessUs = 1'000'000;
constexpr std::uint64_t kSlownessHalvesUs = 60'000'000;

wire::DatagramKey make_key(wire::TagAlgorithm algorithm, const KeyBytes& bytes, const std::string& domain) {
  auto key = wire::DatagramKey::create(algorithm, bytes);
  if (!key) throw std::invalid_argument("domain " + domain + ": this CPU cannot make tags of the session's algorithm");
  return *key;
}

unsigned latency_class(unsigned num_tokens, unsigned num_classes) {
  return std::min(static_cast<unsigned>(std::bit_width(num_tokens)), num_classes) - 1;
}

// Bytes [offset, offset + bytes) of the request's message: routes, then activations.
void copy_message(const Request& request, std::uint32_t offset, std::uint32_t bytes, std::byte* to) {
  const auto routes_bytes = static_cast<std::uint32_t>(request.routes.size());
  if (offset < routes_bytes) {
    const std::uint32_t n = std::min(bytes, routes_bytes - offset);
    std::memcpy(to, request.routes.data() + offset, n);
    to += n;
    offset += n;
    bytes -= n;
  }
  if (bytes > 0) std::memcpy(to, request.activations.data() + (offset - routes_bytes), bytes);
}

}  // namespace

DomainProtocol::DomainProtocol(const SessionConfig& session, const DomainConfig& domain)
    : session_(session),
      fragment_bytes_(domain.fragment_bytes),
      broadcast_(domain.broadcast),
      broadcast_key_(make_key(session.tag_algorithm, domain.key, domain.name)),
      broadcast_key_id_(domain.key_id),
      duck_counters_(domain.ducks.size()),
      duties_(std::make_shared<DomainDuties>(DomainDuties{domain.vectors, domain.vectors_of_layer})),
      buffer_bytes_((sizeof(DataHeader) + domain.fragment_bytes + 63) / 64 * 64),
      send_memory_(buffer_bytes_ * kMaxBatch) {
  if (fragment_bytes_ == 0 || fragment_bytes_ % wire::kFragmentUnitBytes != 0 ||
      fragment_bytes_ > wire::kMaxFragmentBytes) {
    throw std::invalid_argument("domain " + domain.name + ": a fragment of " + std::to_string(fragment_bytes_) +
                                " bytes does not fit the wire");
  }
  ducks_.reserve(domain.ducks.size());
  for (const DuckConfig& d : domain.ducks) {
    ducks_.push_back(Duck{.rank = d.rank,
                          .endpoint = d.endpoint,
                          .key_id = d.key_id,
                          .sequence = 0,
                          .key = make_key(session.tag_algorithm, d.key, domain.name),
                          .window = {},
                          .latency_us = {}});
  }
  for (Lane& lane : lanes_) lane.resends.resize(ducks_.size());
  make_room(*duties_);
}

void DomainProtocol::make_room(const DomainDuties& duties) {
  for (const VectorSpec& spec : duties.vectors) {
    if (spec.duck >= ducks_.size()) throw std::invalid_argument("a vector's duck is not of its domain");
    if (spec.part == wire::kWholeSlice) {
      if (spec.slice != ducks_[spec.duck].rank) throw std::invalid_argument("another rank's slice is asked for by parts");
    } else if (spec.part >= 8) {
      throw std::invalid_argument("a part beyond the eighth");
    }
  }
  for (const auto& layer : duties.vectors_of_layer) {
    for (const std::uint16_t v : layer) {
      if (v >= duties.vectors.size()) throw std::invalid_argument("a layer names a vector that its domain does not have");
    }
  }
  const std::size_t slot_floats = std::size_t{session_.max_tokens} * session_.hidden;
  for (Lane& lane : lanes_) {
    while (lane.slots.size() < duties.vectors.size()) lane.slots.push_back(std::make_unique<VectorSlot>(slot_floats));
    if (lane.states.size() < lane.slots.size()) lane.states.resize(lane.slots.size());
    lane.extras.reserve(lane.slots.size());
  }
}

void DomainProtocol::rekey(std::size_t duck, std::uint32_t key_id, const KeyBytes& key) {
  Duck& d = ducks_.at(duck);
  d.key = make_key(session_.tag_algorithm, key, "of duck " + std::to_string(d.rank));
  d.key_id = key_id;
  d.sequence = 0;
  d.window = {};
  d.num_unanswered = 0;
}

// ---------------------------------------------------------------------------------------------------------
// Requests
// ---------------------------------------------------------------------------------------------------------

void DomainProtocol::begin(unsigned lane_index, const Request& request, std::shared_ptr<const DomainDuties> duties,
                           std::uint64_t now_us) {
  Lane& lane = lanes_[lane_index];
  end(lane_index);
  lane.active = true;
  lane.duties = std::move(duties);
  lane.last_step = request.step;
  lane.request = request;
  lane.sent_at_us = 0;
  lane.next_offset = 0;
  lane.num_missing = 0;
  const std::size_t num_floats = std::size_t{request.num_tokens} * session_.hidden;
  bool any_as_assigned = false;
  for (const std::uint16_t v : lane.duties->vectors_of_layer[request.layer]) {
    const VectorSpec& spec = lane.duties->vectors[v];
    const Duck& duck = ducks_[spec.duck];
    VectorState& state = lane.states[v];
    state = VectorState{};
    state.expected = true;
    state.probe_at_us = now_us + first_probe_us(duck, request.num_tokens);
    lane.slots[v]->arm(num_floats);
    ++lane.num_missing;
    if (spec.part == wire::kWholeSlice) {
      any_as_assigned = true;
      continue;
    }
    const auto bit = static_cast<std::uint8_t>(1U << spec.part);
    if (Extra* same = find_extra(lane, spec.duck, spec.slice); same != nullptr) {
      same->part_mask |= bit;
    } else {
      lane.extras.push_back({spec.duck, spec.slice, bit, 0});
      ++num_due_;
    }
  }
  if (any_as_assigned) {
    lane.broadcast_due = true;
    ++num_due_;
  }
  ++counters_.requests;
}

void DomainProtocol::end(unsigned lane_index) {
  Lane& lane = lanes_[lane_index];
  if (!lane.active) return;
  lane.active = false;
  if (lane.broadcast_due) --num_due_;
  lane.broadcast_due = false;
  num_due_ -= lane.extras.size() - lane.next_extra;
  lane.extras.clear();
  lane.next_extra = 0;
  for (std::size_t d = 0; d < lane.resends.size(); ++d) {
    Resend& r = lane.resends[d];
    if (r.num_ranges > 0) --num_due_;
    r.num_ranges = 0;
    r.spent_bytes = 0;
    r.probes_before = duck_counters_[d].probes;
  }
  for (VectorState& s : lane.states) {
    if (s.probe_due) --num_due_;
    s = VectorState{};
  }
  lane.request = Request{};
}

// ---------------------------------------------------------------------------------------------------------
// Out
// ---------------------------------------------------------------------------------------------------------

std::size_t DomainProtocol::fill(std::span<OutDatagram> batch, std::uint64_t now_us) {
  std::size_t count = 0;
  const auto room = batch.first(std::min(batch.size(), kMaxBatch));
  for (unsigned lane = 0; lane < kNumLanes && num_due_ > 0; ++lane) {
    if (lanes_[lane].active) fill_lane(lane, room, count, now_us);
  }
  return count;
}

void DomainProtocol::fill_lane(unsigned lane_index, std::span<OutDatagram> batch, std::size_t& count,
                               std::uint64_t now_us) {
  Lane& lane = lanes_[lane_index];
  const std::uint32_t total = lane.request.message_bytes();
  if (lane.sent_at_us == 0) lane.sent_at_us = now_us;

  while (lane.broadcast_due && count < batch.size()) {
    const bool is_short = lane.next_offset == 0 && fragment_bytes_ <= kLongestOnWire;
    const std::uint32_t longest = is_short ? std::min(fragment_bytes_, kFirstFragmentBytes) : fragment_bytes_;
    const std::uint32_t bytes = std::min(longest, total - lane.next_offset);
    batch[count] = put_request(lane_index, count, lane.next_offset, bytes, nullptr, wire::kAsAssigned, 0xFF);
    ++count;
    lane.next_offset += bytes;
    if (lane.next_offset == total) {
      lane.broadcast_due = false;
      --num_due_;
    }
  }
  while (lane.next_extra < lane.extras.size() && count < batch.size()) {
    Extra& extra = lane.extras[lane.next_extra];
    const std::uint32_t bytes = std::min(fragment_bytes_, total - extra.next_offset);
    batch[count] = put_request(lane_index, count, extra.next_offset, bytes, &ducks_[extra.duck], extra.slice,
                               extra.part_mask);
    ++count;
    extra.next_offset += bytes;
    if (extra.next_offset == total) {
      ++lane.next_extra;
      --num_due_;
    }
  }
  for (std::size_t d = 0; d < ducks_.size() && count < batch.size(); ++d) {
    Resend& r = lane.resends[d];
    while (r.num_ranges > 0 && count < batch.size()) {
      const wire::Range& range = r.ranges[r.next_range];
      const std::uint32_t bytes = std::min(fragment_bytes_, range.offset + range.bytes - r.next_offset);
      batch[count] = put_request(lane_index, count, r.next_offset, bytes, &ducks_[d], r.slice, r.part_mask);
      ++count;
      duck_counters_[d].resent_bytes += bytes;
      r.next_offset += bytes;
      if (r.next_offset < range.offset + range.bytes) continue;
      if (++r.next_range == r.num_ranges) {
        r.num_ranges = 0;
        --num_due_;
      } else {
        r.next_offset = r.ranges[r.next_range].offset;
      }
    }
  }
  for (std::size_t v = 0; v < lane.states.size() && count < batch.size(); ++v) {
    VectorState& state = lane.states[v];
    if (!state.probe_due) continue;
    state.probe_due = false;
    --num_due_;
    batch[count] = put_probe(lane_index, count, v);
    ++count;
    const std::size_t d = lane.duties->vectors[v].duck;
    ++duck_counters_[d].probes;
    if (ducks_[d].num_unanswered++ == 0) ducks_[d].asked_first_us = now_us;
    ducks_[d].asked_at_us = now_us;
  }
}

DataHeader DomainProtocol::header_for(unsigned lane_index, DataKind kind) const {
  const Lane& lane = lanes_[lane_index];
  DataHeader h{};
  h.magic = wire::kDataMagic;
  h.version = wire::kVersion;
  h.kind = static_cast<std::uint8_t>(kind);
  h.lane = static_cast<std::uint8_t>(lane_index);
  h.session = session_.session;
  h.generation = session_.generation;
  h.step = lane.request.step;
  h.layer = lane.request.layer;
  h.wire_dtype = static_cast<std::uint8_t>(session_.wire_dtype);
  h.part = wire::kWholeSlice;
  h.slice = wire::kAsAssigned;
  h.rank = wire::kAnyRank;
  h.num_tokens = lane.request.num_tokens;
  h.top_k = lane.request.top_k;
  h.hidden = session_.hidden;
  return h;
}

OutDatagram DomainProtocol::put_request(unsigned lane_index, std::size_t index, std::uint32_t offset,
                                        std::uint32_t bytes, Duck* only, std::uint16_t slice, std::uint8_t part_mask) {
  const Request& request = lanes_[lane_index].request;
  DataHeader h = header_for(lane_index, DataKind::kRequest);
  h.slice = slice;
  h.part = part_mask;
  h.message_bytes = request.message_bytes();
  h.offset = offset;
  h.fragment_bytes = bytes;
  copy_message(request, offset, bytes, buffer(index) + sizeof(DataHeader));
  return seal(index, h, only);
}

OutDatagram DomainProtocol::put_probe(unsigned lane_index, std::size_t index, std::size_t vector) {
  const VectorSpec& spec = lanes_[lane_index].duties->vectors[vector];
  std::array<wire::Range, wire::kMaxNackRanges> ranges;
  const VectorSlot& slot = *lanes_[lane_index].slots[vector];
  const std::size_t fits = std::min<std::size_t>(wire::kMaxNackRanges, fragment_bytes_ / sizeof(wire::Range));
  // Nothing has come yet: no ranges, which asks for all of it.
  const std::size_t num_ranges = slot.received_bytes() > 0 ? slot.missing(std::span(ranges).first(fits)) : 0;
  DataHeader h = header_for(lane_index, DataKind::kNackReply);
  h.slice = spec.slice;
  h.part = spec.part;
  h.fragment_bytes = static_cast<std::uint32_t>(num_ranges * sizeof(wire::Range));
  h.message_bytes = h.fragment_bytes;
  std::memcpy(buffer(index) + sizeof(DataHeader), ranges.data(), h.fragment_bytes);
  return seal(index, h, &ducks_[spec.duck]);
}

OutDatagram DomainProtocol::seal(std::size_t index, DataHeader& header, Duck* only) {
  std::byte* const data = buffer(index);
  const std::size_t bytes = sizeof(DataHeader) + header.fragment_bytes;
  header.rank = only != nullptr ? only->rank : wire::kAnyRank;
  header.key_id = only != nullptr ? only->key_id : broadcast_key_id_;
  std::memcpy(data, &header, sizeof header);
  const wire::DatagramKey& key = only != nullptr ? only->key : broadcast_key_;
  std::uint64_t& sequence = only != nullptr ? only->sequence : broadcast_sequence_;
  key.seal({data, bytes}, wire::Direction::kHostToDuck, ++sequence);
  return {data, static_cast<std::uint32_t>(bytes), only != nullptr ? only->endpoint : broadcast_};
}

// ---------------------------------------------------------------------------------------------------------
// In
// ---------------------------------------------------------------------------------------------------------

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
  float& usual = ducks_[d].latency_us[latency_class(lane.request.num_tokens, kLatencyClasses)];
  const auto sample = static_cast<float>(latency_us);
  usual = usual == 0.0F ? sample : usual + kLatencyWeight * (sample - usual);
}

// ---------------------------------------------------------------------------------------------------------
// Time
// ---------------------------------------------------------------------------------------------------------

std::uint64_t DomainProtocol::first_probe_us(const Duck& duck, unsigned num_tokens) const {
  const float usual = duck.latency_us[latency_class(num_tokens, kLatencyClasses)];
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
