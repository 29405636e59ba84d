// Tickets of the host: which chunk another duck may get here, once, and with which secret it proves that it is meant.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>

#include "control_frame.hpp"
#include "digest.hpp"
#include "handshake.hpp"

namespace duckfleet::duckd {

class Offers {
 public:
  using Clock = std::chrono::steady_clock;

  // Payload of kChunkOffer. An offer that nobody takes ends after its lifetime; kMaxOffers stand at a time.
  std::optional<wire::Refusal> add(std::span<const std::byte> payload, Clock::time_point now = Clock::now());

  // Nothing: no such ticket stands. Looking does not use it up, so that a stranger's hello takes nobody's away.
  std::optional<wire::TicketSecret> secret(std::uint64_t ticket, Clock::time_point now = Clock::now()) const;

  // The chunk of a ticket whose holder has proved itself; the ticket is used up.
  std::optional<Digest> take(std::uint64_t ticket, Clock::time_point now = Clock::now());

 private:
  struct Offer {
    wire::TicketSecret secret;
    Digest digest;
    Clock::time_point ends;
  };

  mutable std::mutex mutex_;
  std::map<std::uint64_t, Offer> offers_;
};

}  // namespace duckfleet::duckd
