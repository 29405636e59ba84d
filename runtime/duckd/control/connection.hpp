// One accepted control connection: deadlines, the hello, plain or sealed frames.
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

namespace duckfleet::duckd {

struct ControlTimeouts {
  std::chrono::milliseconds hello{15000};   // from accept to the end of the handshake
  std::chrono::milliseconds frame{20000};   // from a frame's first byte to its last; also to send an answer
  std::chrono::milliseconds idle{300000};   // between frames
  std::chrono::milliseconds drain{1000};    // for the peer to close after us
};

class ControlConnection {
 public:
  // Does not own `fd`. `keys` null: --no-auth.
  ControlConnection(int fd, const wire::DuckKeys* keys, const ControlTimeouts& timeouts, ControlCounters& counters,
                    std::string peer);

  // The hello and, where there are keys, the handshake. False: to be closed.
  bool greet();

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
  bool greet_keyed(std::span<const std::byte> hello_frame, Clock::time_point deadline);
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
  std::vector<std::byte> buffer_;
};

}  // namespace duckfleet::duckd
