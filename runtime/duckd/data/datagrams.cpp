// What arrives at the data plane: judged, put together, answered again where it was lost, or counted and dropped.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "data_plane.hpp"
#include "log.hpp"
#include "parse.hpp"

namespace duckfleet::duckd {
namespace {

using std::chrono::microseconds;
using wire::DataKind;
using wire::DropReason;

// A request whose fragments stopped coming is asked for after this, then after twice as long, and so on.
constexpr microseconds kFirstNackAfter{3000};
constexpr microseconds kLastNackAfter{100000};

// Echoes outside a session are anybody's: as many a second, and in a burst kEchoBurst.
constexpr double kEchoesPerSecond = 5000;

constexpr auto kDropLogEvery = std::chrono::seconds(10);

// "Not for us": what any stranger on the segment may send. Everything else claims to be ours and is unusable.
bool is_foreign(DropReason reason) {
  switch (reason) {
    case DropReason::kTooShort:
    case DropReason::kTooLong:
    case DropReason::kBadMagic:
    case DropReason::kForeignAddress:
    case DropReason::kWrongRank:
    case DropReason::kNotHeld:
    case DropReason::kDuplicateFragment:
      return true;
    default:
      return false;
  }
}

bool same_message(const wire::DataHeader& a, const wire::DataHeader& b) {
  return a.step == b.step && a.layer == b.layer && a.slice == b.slice && a.part == b.part;
}

}  // namespace

void DataPlane::on_datagram(const Received& received) {
  counters_.datagrams.add();
  counters_.bytes_in.add(received.bytes.size());
  if (const DropReason drop = judge(received); drop != DropReason::kNone) {
    counters_.drop(drop);
    ++num_unlogged_;
  }
}

DropReason DataPlane::judge(const Received& received) {
  if (received.truncated) return DropReason::kTooLong;
  const wire::Datagram datagram = wire::classify(received.bytes);
  if (!datagram.ok()) return datagram.drop;
  const DataKind kind = datagram.kind();
  if (kind != DataKind::kRequest && kind != DataKind::kNackReply && kind != DataKind::kEcho) {
    return DropReason::kWrongDirection;
  }
  if (kind == DataKind::kEcho && datagram.header.session == 0) return on_echo(datagram, received);
  if (!session_) return DropReason::kNoSession;
  if (const auto drop = session_->admit(datagram, received.bytes, received.from); drop != DropReason::kNone) return drop;
  if (kind == DataKind::kRequest) return on_request(datagram);
  if (kind == DataKind::kNackReply) return on_nack_reply(datagram);
  counters_.echoes.add();
  outbox_.sender().send_single(*session_, DataKind::kEchoReply, datagram.header, datagram.payload);
  return DropReason::kNone;
}

DropReason DataPlane::on_echo(const wire::Datagram& datagram, const Received& received) {
  const auto now = Clock::now();
  const std::chrono::duration<double> passed = now - echo_refilled_;
  echo_refilled_ = now;
  echo_tokens_ = std::min(kEchoBurst, echo_tokens_ + passed.count() * kEchoesPerSecond);
  if (echo_tokens_ < 1) return DropReason::kRateLimited;
  echo_tokens_ -= 1;
  counters_.echoes.add();
  wire::DataHeader header = datagram.header;
  header.kind = static_cast<std::uint8_t>(DataKind::kEchoReply);
  std::memcpy(received.bytes.data(), &header, sizeof header);
  const std::array<std::span<const std::byte>, 1> batch = {received.bytes};
  transport_->send(batch, received.from);
  return DropReason::kNone;
}

DropReason DataPlane::check_place(const wire::DataHeader& header) const {
  const wire::Configure& config = session_->config();
  if (header.hidden != config.hidden || header.wire_dtype != config.wire_dtype || header.layer >= config.num_layers) {
    return DropReason::kWrongShape;
  }
  const bool whole = header.slice == wire::kAsAssigned;
  const Slice* slice = session_->shard().find(header.layer, whole ? config.rank : header.slice);
  if (slice == nullptr) return DropReason::kNotHeld;
  if (whole) return DropReason::kNone;
  unsigned held = 0;
  for (const Part& part : *slice) held |= 1u << part.index;
  return (header.part & ~held) == 0 ? DropReason::kNone : DropReason::kNotHeld;
}

// A newer step means that the host is done with the older ones, answered or not.
void DataPlane::move_on(Lane& lane, std::uint32_t step) {
  lane.last_step = step;
  for (Slot& slot : lane.slots) {
    if (&slot == running_.slot) {
      slot.cancelled = true;
      continue;
    }
    if (slot.state == SlotState::kQueued) {
      std::erase(queue_, &slot);
      counters_.cancelled.add();
    }
    slot.state = SlotState::kFree;
  }
}

Slot* DataPlane::free_slot(Lane& lane, std::uint32_t step) {
  Slot* oldest = nullptr;
  for (Slot& slot : lane.slots) {
    if (slot.state == SlotState::kFree) return &slot;
    if (slot.state == SlotState::kDone && (oldest == nullptr || slot.epoch < oldest->epoch)) oldest = &slot;
  }
  if (oldest != nullptr && oldest->assembly.header().step <= step) return oldest;
  return nullptr;
}

DropReason DataPlane::on_request(const wire::Datagram& datagram) {
  const wire::DataHeader& header = datagram.header;
  if (const auto drop = check_place(header); drop != DropReason::kNone) return drop;
  Lane& lane = session_->lanes[header.lane];
  if (header.step < lane.last_step) return DropReason::kStaleStep;
  for (Slot& slot : lane.slots) {
    if (slot.state == SlotState::kFree || !same_message(slot.assembly.header(), header)) continue;
    if (slot.state == SlotState::kAssembling) return add_fragment(slot, datagram);
    // Whole already. The fragment that begins a repetition is answered for all of it.
    if (header.offset == 0 && slot.state != SlotState::kDone) {
      counters_.busy_sent.add();
      outbox_.sender().send_single(*session_, DataKind::kBusy, slot.assembly.header(), {});
    } else if (header.offset == 0) {
      for (std::size_t i = 0; i < slot.num_vectors; ++i) send_again(slot, i, 0, wire::kRestOfMessage);
    }
    return DropReason::kDuplicateFragment;
  }
  return begin_request(lane, datagram);
}

DropReason DataPlane::begin_request(Lane& lane, const wire::Datagram& datagram) {
  const wire::DataHeader& header = datagram.header;
  if (header.step > lane.last_step) move_on(lane, header.step);
  Slot* slot = free_slot(lane, header.step);
  if (slot == nullptr) return DropReason::kNoSlot;
  slot->state = SlotState::kAssembling;
  slot->epoch = next_epoch_++;
  slot->cancelled = false;
  slot->stalled = false;
  slot->num_vectors = 0;
  slot->num_nacks = 0;
  slot->nack_after = kFirstNackAfter;
  slot->assembly.begin(header);
  return add_fragment(*slot, datagram);
}

DropReason DataPlane::add_fragment(Slot& slot, const wire::Datagram& datagram) {
  switch (slot.assembly.add(datagram.header, datagram.payload)) {
    case Assembly::Added::kConflicting:
      return DropReason::kConflicting;
    case Assembly::Added::kDuplicate:
      return DropReason::kDuplicateFragment;
    case Assembly::Added::kNew:
      slot.fragment_at = Clock::now();
      slot.nack_at = slot.fragment_at + slot.nack_after;
      return DropReason::kNone;
    case Assembly::Added::kComplete:
      break;
  }
  if (&slot != running_.slot && !routes_ascend(slot.assembly.routes(), slot.assembly.header().top_k)) {
    slot.state = SlotState::kFree;
    return DropReason::kBadRoutes;
  }
  counters_.requests.add();
  slot.state = SlotState::kQueued;
  slot.whole_at = Clock::now();
  if (&slot != running_.slot) queue_.push_back(&slot);
  return DropReason::kNone;
}

DropReason DataPlane::on_nack_reply(const wire::Datagram& datagram) {
  const wire::DataHeader& header = datagram.header;
  counters_.nacks_received.add();
  if (header.slice >= wire::kMaxTp || (header.part >= 8 && header.part != wire::kWholeSlice)) {
    return DropReason::kBadField;  // it must name one reply
  }
  Lane& lane = session_->lanes[header.lane];
  if (header.step < lane.last_step) return DropReason::kStaleStep;

  std::vector<wire::Range> ranges(header.fragment_bytes / sizeof(wire::Range));
  if (!ranges.empty()) std::memcpy(ranges.data(), datagram.payload.data(), datagram.payload.size());
  if (ranges.empty()) ranges.push_back({0, wire::kRestOfMessage});

  const std::uint16_t rank = session_->config().rank;
  for (Slot& slot : lane.slots) {
    const wire::DataHeader& request = slot.assembly.header();
    if (slot.state == SlotState::kFree || request.step != header.step || request.layer != header.layer) continue;
    const bool whole = request.slice == wire::kAsAssigned;
    const bool wanted = whole ? header.slice == rank && header.part == wire::kWholeSlice
                              : header.slice == request.slice && header.part < 8 && ((request.part >> header.part) & 1);
    if (!wanted) continue;
    if (slot.state == SlotState::kAssembling) {
      send_missing(slot);
    } else if (slot.state != SlotState::kDone) {
      counters_.busy_sent.add();
      outbox_.sender().send_single(*session_, DataKind::kBusy, request, {});
    } else {
      for (std::size_t i = 0; i < slot.num_vectors; ++i) {
        if (slot.vectors[i].part != header.part) continue;
        for (const wire::Range& range : ranges) {
          const std::uint64_t end = std::uint64_t{range.offset} + range.bytes;
          if (range.offset % wire::kFragmentUnitBytes != 0) return DropReason::kBadFragment;
          send_again(slot, i, range.offset,
                     static_cast<std::uint32_t>(std::min<std::uint64_t>(end, wire::kRestOfMessage)));
        }
      }
    }
    return DropReason::kNone;
  }
  // Not a fragment of that request has come through: all of it, please.
  const wire::Range everything{0, wire::kRestOfMessage};
  counters_.nacks_sent.add();
  outbox_.sender().send_single(*session_, DataKind::kNackRequest, header, std::as_bytes(std::span(&everything, 1)));
  return DropReason::kUnknownMessage;
}

void DataPlane::send_missing(Slot& slot) {
  const std::vector<wire::Range> ranges = slot.assembly.missing();
  counters_.nacks_sent.add();
  outbox_.sender().send_single(*session_, DataKind::kNackRequest, slot.assembly.header(), std::as_bytes(std::span(ranges)));
}

void DataPlane::nack_late(Clock::time_point now) {
  if (!session_) return;
  for (Lane& lane : session_->lanes) {
    for (Slot& slot : lane.slots) {
      if (slot.state != SlotState::kAssembling || slot.num_nacks >= kMaxNacks || now < slot.nack_at) continue;
      send_missing(slot);
      ++slot.num_nacks;
      slot.nack_after = std::min(slot.nack_after * 2, kLastNackAfter);
      slot.nack_at = now + slot.nack_after;
    }
  }
}

void DataPlane::send_again(Slot& slot, std::size_t vector, std::uint32_t begin, std::uint32_t end) {
  if (outbox_.plan(session_, slot, vector, begin, end, false)) counters_.resends.add();
}

void DataPlane::log_drops(Clock::time_point now) {
  if (num_unlogged_ == 0 || now < next_drop_log_) return;
  next_drop_log_ = now + kDropLogEvery;
  num_unlogged_ = 0;
  for (std::size_t i = 1; i < wire::kNumDropReasons; ++i) {
    const std::uint64_t count = counters_.drops[i].get();
    const std::uint64_t fresh = count - std::exchange(logged_drops_[i], count);
    if (fresh == 0) continue;
    const auto reason = static_cast<DropReason>(i);
    LogLine line(is_foreign(reason) ? LogLevel::kDebug : LogLevel::kWarn, "datagrams_dropped");
    line.with("reason", wire::name(reason)).with("count", fresh);
  }
}

}  // namespace duckfleet::duckd
