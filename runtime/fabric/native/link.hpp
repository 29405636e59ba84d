// How datagrams get out and in: one interface, a table of implementations (`udp`; later `xdp`, `dpdk`).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "config.hpp"

namespace duckfleet::fabric {

// The operating system refused what we need of it; the text names the domain and what to do.
struct LinkError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct OutDatagram {
  const std::byte* data = nullptr;
  std::uint32_t bytes = 0;
  Endpoint to;
};

struct InDatagram {
  std::byte* data = nullptr;  // the reader's to change: checking a tag clears it
  std::uint32_t bytes = 0;
  Endpoint from;
  bool truncated = false;  // it was longer than any datagram of this domain may be
};

struct LinkCounters {
  std::uint64_t sent_datagrams = 0;
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_datagrams = 0;
  std::uint64_t received_bytes = 0;
  std::uint64_t send_errors = 0;
  int last_send_errno = 0;
};

class Link {
 public:
  virtual ~Link() = default;

  // Hand over datagrams, in order; returns how many are done with (sent, or refused and counted). Fewer than
  // given: the socket is full, go on when wait() says there is room.
  virtual std::size_t send(std::span<const OutDatagram> datagrams) = 0;

  // Whatever has arrived, without waiting. Valid until the next call.
  virtual std::span<const InDatagram> receive() = 0;

  // Block until something arrived (or there is room to send, if asked for), wake() was called, or time is up.
  virtual void wait(std::uint64_t timeout_us, bool for_room) = 0;
  // Block until wake() was called or time is up, whatever arrives.
  virtual void sleep(std::uint64_t timeout_us) = 0;
  virtual void wake() = 0;

  [[nodiscard]] virtual Endpoint local() const = 0;  // where replies are to go

  [[nodiscard]] virtual std::size_t receive_buffer_bytes() const = 0;
  [[nodiscard]] const LinkCounters& counters() const { return counters_; }

 protected:
  LinkCounters counters_;
};

struct LinkKind {
  std::string_view name;
  std::unique_ptr<Link> (*open)(const DomainConfig& domain);  // throws LinkError
};

std::span<const LinkKind> link_kinds();

// Throws LinkError naming the known kinds when `kind` is none of them: there is no falling back.
std::unique_ptr<Link> open_link(std::string_view kind, const DomainConfig& domain);

}  // namespace duckfleet::fabric
