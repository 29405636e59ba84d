// How datagrams get in and out: one interface, a table of implementations, an explicit choice that never falls back.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace duckfleet::duckd {

struct Peer {
  std::uint32_t address = 0;  // IPv4, network order, as is the port
  std::uint16_t port = 0;

  bool operator==(const Peer&) const = default;
};

std::string to_text(const Peer& peer);

struct Received {
  std::span<std::byte> bytes;  // writable: a tag is zeroed in place to be checked
  Peer from;
  bool truncated = false;
};

struct TransportOptions {
  std::string bind;
  std::string broadcast;  // empty: none
  std::uint16_t port = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;

  // What has arrived, at most a batch; never blocks. The views are good until the next call. One thread.
  virtual std::span<const Received> receive() = 0;

  // Returns when something has arrived, wake() was called, or the time is over. The same thread.
  virtual void wait(std::chrono::nanoseconds timeout) = 0;

  // Ends a wait(), also the next one. Any thread.
  virtual void wake() noexcept = 0;

  // Sends in order; the number that left. Any thread; may block for as long as the link is busy.
  virtual std::size_t send(std::span<const std::span<const std::byte>> datagrams, const Peer& to) noexcept = 0;

  // Datagrams that arrived and found no room, since start.
  virtual std::uint64_t num_overrun() const noexcept = 0;

  virtual std::uint64_t receive_buffer_bytes() const noexcept = 0;
};

inline constexpr std::size_t kMaxSendBatch = 32;

std::vector<std::string_view> transport_names();

// Null, and `error`, when the name is unknown or the transport cannot be opened.
std::unique_ptr<Transport> open_transport(std::string_view name, const TransportOptions& options, std::string& error);

}  // namespace duckfleet::duckd
