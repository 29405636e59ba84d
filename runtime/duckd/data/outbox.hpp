// Pieces of results that are to be sent, in order, not faster than the session's pace.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "counters.hpp"
#include "reply_sender.hpp"
#include "session.hpp"

namespace duckfleet::duckd {

class Outbox {
 public:
  Outbox(Transport& transport, DataCounters& counters) : sender_(transport, counters), counters_(counters) {}

  // Bytes [begin, end) of a vector of the slot's request, all of them final. `ends_reply`: with them all of it was sent
  // once. False, and nothing, when too much waits already.
  bool plan(const std::shared_ptr<Session>& session, Slot& slot, std::size_t vector, std::uint32_t begin,
            std::uint32_t end, bool ends_reply);

  // Sends what the pace allows by now. True when anything was sent.
  bool send(Clock::time_point now);

  bool empty() const noexcept { return pieces_.empty(); }
  Clock::time_point next_send() const noexcept { return next_send_; }
  void clear() noexcept { pieces_.clear(); }

  // Datagrams that answer at once, past the queue.
  ReplySender& sender() noexcept { return sender_; }

 private:
  struct Piece {
    std::shared_ptr<Session> session;
    Slot* slot;
    std::uint64_t epoch;
    std::size_t vector;
    std::uint32_t begin, end;
    bool ends_reply;
  };

  ReplySender sender_;
  DataCounters& counters_;
  std::deque<Piece> pieces_;
  Clock::time_point next_send_;
};

}  // namespace duckfleet::duckd
