// One control connection, accepted or made to another duck: deadlines, the hello, plain or sealed frames.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "control_frame.hpp"
#include "counters.hpp"
#include "handshake.hpp"
#include "offers.hpp"

namespace duckfleet::duckd {

struct ControlTimeouts {
  std::chrono::milliseconds hello{15000};   // from accept to the end of the handshake
  std::chrono::milliseconds frame{20000};   // from a frame's first byte to its last; also to send an answer
  std::chrono::milliseconds idle{300000};   // between frames
  std::chrono::milliseconds drain{1000};    // for the peer to close after us
  std::chrono::steady_clock::time_point end = std::chrono::steady_clock::time_point::max();  // of all reading
};

class ControlConnection {
 public:
  // Does not own `fd`. `keys` null: --no-auth.
  ControlConnection(int fd, const wire::DuckKeys* keys, const ControlTimeouts& timeouts, ControlCounters& counters,
                    std::string peer);

  // The hello and, where there are keys, the handshake. False: to be closed.
  bool greet(const Offers& offers);
  // Of a connection that another duck made for a chunk that was offered to it.
  std::optional<std::uint64_t> ticket() const noexcept { return ticket_; }

  // The other end of the same: we are the duck that wants a chunk. False: to be closed, `why()` says why.
  bool call(wire::PeerCall& call);
  const std::string& why() const noexcept { return why_; }

  // The next frame; it lives until the next call. False: to be closed.
  bool receive(wire::ControlFrame& frame);

  bool send(wire::ControlType type, std::uint32_t request_id, std::span<const std::byte> payload);

  // Says that no more will be sent and lets the peer finish: closed with unread bytes, TCP would take back an answer
  // that is still on its way.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  enum class Io : std::uint8_t { kDone, kClosed, kTimeout };

  Io read(std::span<std::byte> into, Clock::time_point deadline);
  bool read_counted(std::span<std::byte> into, Clock::time_point deadline);
  bool write(std::span<const std::byte> bytes);
  bool refuse(std::uint32_t request_id, const wire::Refusal& refusal);
  bool greet_peer(std::span<const std::byte> hello_frame, const Offers& offers, Clock::time_point deadline);
  bool shake_hands(std::optional<wire::DuckHandshake> handshake, std::uint32_t request_id, Clock::time_point deadline);
  bool first_bytes(std::span<std::byte> into, Clock::time_point& deadline);
  bool receive_plain(wire::ControlFrame& frame);
  bool receive_sealed(wire::ControlFrame& frame);

  const int fd_;
  const wire::DuckKeys* keys_;
  const ControlTimeouts timeouts_;
  ControlCounters& counters_;
  const std::string peer_;
  std::optional<wire::SecretStream> stream_;
  std::optional<Clock::time_point> first_deadline_;  // of a keyed host's first sealed frame
  std::optional<std::uint64_t> ticket_;
  std::string why_;  // the last reading failed
  std::vector<std::byte> sealed_, buffer_;  // as it came; a frame
};

}  // namespace duckfleet::duckd
