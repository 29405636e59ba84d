#include "connection.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "log.hpp"

namespace duckfleet::duckd {
namespace {

using wire::ControlHeader;
using wire::ControlMode;
using wire::ControlType;
using wire::ErrorCode;
using wire::Refusal;

// False when the deadline passed first.
bool wait_for(int fd, short events, std::chrono::steady_clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd one{fd, events, 0};
    const int ready = poll(&one, 1, static_cast<int>(left.count()));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return true;  // the call that follows tells what is wrong
  }
}

}  // namespace

ControlConnection::ControlConnection(int fd, const wire::DuckKeys* keys, const ControlTimeouts& timeouts,
                                     ControlCounters& counters, std::string peer)
    : fd_(fd), keys_(keys), timeouts_(timeouts), counters_(counters), peer_(std::move(peer)) {}

ControlConnection::Io ControlConnection::read(std::span<std::byte> into, Clock::time_point deadline) {
  deadline = std::min(deadline, timeouts_.end);
  while (!into.empty()) {
    if (!wait_for(fd_, POLLIN, deadline)) return Io::kTimeout;
    const ssize_t count = recv(fd_, into.data(), into.size(), MSG_DONTWAIT);
    if (count == 0) return Io::kClosed;
    if (count < 0) {
      if (errno == EAGAIN || errno == EINTR) continue;
      return Io::kClosed;
    }
    into = into.subspan(static_cast<std::size_t>(count));
  }
  return Io::kDone;
}

// Inside a frame: an end is a broken frame, silence a held-up one.
bool ControlConnection::read_counted(std::span<std::byte> into, Clock::time_point deadline) {
  const Io io = read(into, deadline);
  if (io == Io::kTimeout) {
    counters_.timeouts.add();
    log_debug("control_timeout").with("peer", peer_);
  }
  if (io != Io::kDone) why_ = io == Io::kTimeout ? "it fell silent" : "it closed the connection";
  return io == Io::kDone;
}

bool ControlConnection::write(std::span<const std::byte> bytes) {
  const auto deadline = Clock::now() + timeouts_.frame;
  while (!bytes.empty()) {
    const ssize_t count = ::send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN) {
      if (!wait_for(fd_, POLLOUT, deadline)) {
        counters_.timeouts.add();
        return false;
      }
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

bool ControlConnection::send(ControlType type, std::uint32_t request_id, std::span<const std::byte> payload) {
  const std::vector<std::byte> frame = wire::make_control_frame(type, request_id, payload);
  return write(stream_ ? std::span<const std::byte>(stream_->seal(frame)) : std::span<const std::byte>(frame));
}

void ControlConnection::finish() {
  constexpr std::size_t kMaxDrained = 4u << 20;
  ::shutdown(fd_, SHUT_WR);
  const auto deadline = Clock::now() + timeouts_.drain;
  std::array<std::byte, 4096> ignored;
  for (std::size_t drained = 0; drained < kMaxDrained && wait_for(fd_, POLLIN, deadline); drained += ignored.size()) {
    if (recv(fd_, ignored.data(), ignored.size(), MSG_DONTWAIT) <= 0) return;
  }
}

bool ControlConnection::refuse(std::uint32_t request_id, const Refusal& refusal) {
  why_ = "what it sent is out of order: " + refusal.text;
  if (refusal.code == ErrorCode::kProtocolVersion) {
    counters_.wrong_version.add();
  } else {
    counters_.malformed.add();
  }
  log_warn("control_refused").with("peer", peer_).with("code", wire::name(refusal.code)).with("reason", refusal.text);
  send(ControlType::kError, request_id, wire::error_payload(refusal));
  return false;
}

bool ControlConnection::greet(const Offers& offers) {
  const auto deadline = Clock::now() + timeouts_.hello;
  std::array<std::byte, sizeof(ControlHeader) + sizeof(wire::Hello)> frame;
  const auto head = std::span(frame).first(sizeof(ControlHeader));
  if (!read_counted(head, deadline)) return false;
  ControlHeader header;
  std::memcpy(&header, head.data(), sizeof header);
  if (header.magic != wire::kControlMagic) {  // a stray browser, a port scan: not for us, and nothing to say to it
    counters_.malformed.add();
    log_debug("not_control").with("peer", peer_);
    return false;
  }
  if (const auto refusal = wire::check_control_header(header)) return refuse(header.request_id, *refusal);
  const bool from_duck = header.type == static_cast<std::uint16_t>(ControlType::kPeerHello);
  if ((!from_duck && header.type != static_cast<std::uint16_t>(ControlType::kHello)) ||
      header.length != sizeof(wire::Hello)) {
    return refuse(header.request_id, {ErrorCode::kMalformed, "a connection begins with a hello"});
  }
  if (!read_counted(std::span(frame).subspan(head.size()), deadline)) return false;
  if (from_duck) return greet_peer(frame, offers, deadline);
  wire::Hello hello;
  std::memcpy(&hello, frame.data() + sizeof header, sizeof hello);

  const bool keyed = hello.mode == static_cast<std::uint8_t>(ControlMode::kKeyed);
  if (!keyed && hello.mode != static_cast<std::uint8_t>(ControlMode::kPlain)) {
    return refuse(header.request_id, {ErrorCode::kMalformed, "an unknown mode in the hello"});
  }
  if (keyed != (keys_ != nullptr)) {
    counters_.auth_missing.add();
    const Refusal refusal = keyed ? Refusal{ErrorCode::kAuthNotConfigured,
                                            "this duck was started with --no-auth; speak to it without keys"}
                                  : Refusal{ErrorCode::kAuthRequired, "this duck takes commands with the fleet's keys only"};
    log_warn("control_refused").with("peer", peer_).with("code", wire::name(refusal.code));
    send(ControlType::kError, header.request_id, wire::error_payload(refusal));
    return false;
  }
  if (keyed) return shake_hands(wire::DuckHandshake::accept(*keys_, frame), header.request_id, deadline);
  wire::HelloReply reply{};
  reply.mode = static_cast<std::uint8_t>(ControlMode::kPlain);
  return send(ControlType::kHelloReply, header.request_id, wire::bytes_of(reply));
}

bool ControlConnection::greet_peer(std::span<const std::byte> hello_frame, const Offers& offers,
                                   Clock::time_point deadline) {
  wire::PeerHello hello;
  std::memcpy(&hello, hello_frame.data() + sizeof(ControlHeader), sizeof hello);
  const auto secret = offers.secret(hello.ticket);
  if (!secret) {  // whoever has none learns nothing
    counters_.auth_failed.add();
    log_warn("ticket_unknown").with("peer", peer_);
    return false;
  }
  ticket_ = hello.ticket;
  constexpr std::size_t kFrameBytes = sizeof(ControlHeader) + sizeof(wire::PeerHello);
  return shake_hands(wire::DuckHandshake::accept_peer(*secret, hello_frame.first<kFrameBytes>()), 0, deadline);
}

bool ControlConnection::shake_hands(std::optional<wire::DuckHandshake> handshake, std::uint32_t request_id,
                                    Clock::time_point deadline) {
  if (!handshake) {
    counters_.auth_failed.add();
    return false;
  }
  if (!send(ControlType::kHelloReply, request_id, wire::bytes_of(handshake->reply()))) return false;

  std::uint32_t length = 0;
  std::array<std::byte, wire::kStreamHeaderBytes> stream_header;
  if (!read_counted(std::as_writable_bytes(std::span(&length, 1)), deadline)) return false;
  if (length != stream_header.size()) {
    counters_.malformed.add();
    return false;
  }
  if (!read_counted(stream_header, deadline)) return false;
  stream_ = handshake->finish(stream_header);
  if (!stream_) return false;
  // The other side has not proved itself yet: its first sealed frame must come, and open, before it counts as a host.
  first_deadline_ = deadline;
  return true;
}

bool ControlConnection::call(wire::PeerCall& call) {
  wire::ControlFrame frame;
  if (!write(call.hello_frame())) {
    why_ = "it takes nothing";
    return false;
  }
  if (!receive_plain(frame)) return false;
  wire::HelloReply reply;
  if (frame.type() != ControlType::kHelloReply || !wire::take_only(frame.payload, reply)) {
    why_ = "it does not answer as a duck that was offered to others";
    return false;
  }
  std::vector<std::byte> first_bytes;
  stream_ = call.finish(reply, first_bytes);
  if (!stream_) why_ = "it does not know the ticket's secret";
  return stream_ && write(first_bytes);
}

// The first bytes of a frame may take their time; the rest may not.
bool ControlConnection::first_bytes(std::span<std::byte> into, Clock::time_point& deadline) {
  const auto start_by = std::min(timeouts_.end, first_deadline_.value_or(Clock::now() + timeouts_.idle));
  if (!wait_for(fd_, POLLIN, start_by)) {
    counters_.timeouts.add();
    why_ = "it fell silent";
    return false;
  }
  deadline = first_deadline_.value_or(Clock::now() + timeouts_.frame);
  first_deadline_.reset();
  return read_counted(into, deadline);
}

bool ControlConnection::receive(wire::ControlFrame& frame) {
  return stream_ ? receive_sealed(frame) : receive_plain(frame);
}

bool ControlConnection::receive_plain(wire::ControlFrame& frame) {
  Clock::time_point deadline;
  if (!first_bytes(std::as_writable_bytes(std::span(&frame.header, 1)), deadline)) return false;
  if (const auto refusal = wire::check_control_header(frame.header)) return refuse(frame.header.request_id, *refusal);
  buffer_.resize(frame.header.length);
  if (!read_counted(buffer_, deadline)) return false;
  frame.payload = buffer_;
  return true;
}

bool ControlConnection::receive_sealed(wire::ControlFrame& frame) {
  Clock::time_point deadline;
  std::uint32_t length = 0;
  if (!first_bytes(std::as_writable_bytes(std::span(&length, 1)), deadline)) return false;
  if (length < wire::kSealBytes || length > wire::kMaxSealedBytes) {
    counters_.malformed.add();
    why_ = "what it sent is no frame";
    return false;
  }
  sealed_.resize(length);
  if (!read_counted(sealed_, deadline)) return false;
  if (!stream_->open(sealed_, buffer_)) {
    counters_.auth_failed.add();
    log_warn("control_not_authentic").with("peer", peer_);
    why_ = "what it sent was changed on its way";
    return false;
  }
  if (const auto refusal = wire::parse_control_frame(buffer_, frame)) return refuse(frame.header.request_id, *refusal);
  return true;
}

}  // namespace duckfleet::duckd
