#include "domain_protocol.hpp"

#include <stdexcept>

namespace duckfleet::fabric {
namespace {

using wire::DataHeader;

wire::DatagramKey make_key(wire::TagAlgorithm algorithm, const KeyBytes& bytes, const std::string& domain) {
  auto key = wire::DatagramKey::create(algorithm, bytes);
  if (!key) throw std::invalid_argument("domain " + domain + ": this CPU cannot make tags of the session's algorithm");
  return *key;
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

}  // namespace duckfleet::fabric
