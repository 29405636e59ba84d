// What goes out: requests in fragments, questions for replies that are missing.
#include "domain_protocol.hpp"

#include <algorithm>
#include <cstring>

namespace duckfleet::fabric {
namespace {

using wire::DataHeader;
using wire::DataKind;

// On a wire a duck begins with the first fragment, so that is a short one. A fragment longer than any Ethernet frame
// means that there is no wire.
constexpr std::uint32_t kLongestOnWire = 9216;
constexpr std::uint32_t kFirstFragmentBytes = 4096;

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

}  // namespace duckfleet::fabric
