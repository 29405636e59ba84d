#include "outbox.hpp"

#include <algorithm>
#include <chrono>

#include "parse.hpp"

namespace duckfleet::duckd {
namespace {

constexpr std::size_t kMaxPieces = 512;
// With a pace given: only what a switch port surely buffers. Without, so many that looking at the network in between
// costs nothing.
constexpr std::size_t kPacedFragments = 16;
constexpr std::size_t kFragments = 64;

}  // namespace

bool Outbox::plan(const std::shared_ptr<Session>& session, Slot& slot, std::size_t vector, std::uint32_t begin,
                  std::uint32_t end, bool ends_reply) {
  end = std::min(end, static_cast<std::uint32_t>(wire::reply_bytes(slot.assembly.header())));
  if (begin >= end || pieces_.size() >= kMaxPieces) return false;
  pieces_.push_back({session, &slot, slot.epoch, vector, begin, end, ends_reply});
  return true;
}

bool Outbox::send(Clock::time_point now) {
  bool sent = false;
  while (!pieces_.empty()) {
    Piece& piece = pieces_.front();
    if (piece.slot->epoch != piece.epoch || piece.slot->state == SlotState::kFree) {  // nobody waits for it any more
      pieces_.pop_front();
      continue;
    }
    const std::uint64_t pace = piece.session->config().pace_bytes_per_s;
    if (pace != 0 && now < next_send_) return sent;
    const std::uint32_t begin = piece.begin;
    piece.begin = sender_.send_vector(*piece.session, *piece.slot, piece.vector, begin, piece.end,
                                      pace != 0 ? kPacedFragments : kFragments);
    sent = true;
    const bool is_done = piece.begin >= piece.end;
    if (pace != 0) {
      next_send_ = now + std::chrono::nanoseconds((std::uint64_t{piece.begin} - begin) * 1'000'000'000 / pace);
    }
    if (is_done) {
      if (piece.ends_reply) counters_.replies.add();
      pieces_.pop_front();
    }
    if (pace == 0 && !is_done) return sent;
  }
  return sent;
}

}  // namespace duckfleet::duckd
