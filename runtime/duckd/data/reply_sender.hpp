// Cuts results into sealed fragments and sends them to the session's host. One a thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "counters.hpp"
#include "page_buffer.hpp"
#include "session.hpp"
#include "transport.hpp"

namespace duckfleet::duckd {

class ReplySender {
 public:
  // Throws std::bad_alloc when there is no memory for a batch of datagrams.
  ReplySender(Transport& transport, DataCounters& counters);

  // Fragments of vectors[vector] of a computed slot, from byte `begin` (a multiple of kFragmentUnitBytes) to `end`, at
  // most `max_fragments`. Returns where the next fragment begins; `end` when all were sent.
  std::uint32_t send_vector(Session& session, Slot& slot, std::size_t vector, std::uint32_t begin, std::uint32_t end,
                            std::size_t max_fragments) noexcept;

  // A message of one datagram about what `about` names.
  void send_single(Session& session, wire::DataKind kind, const wire::DataHeader& about,
                   std::span<const std::byte> payload) noexcept;

 private:
  std::span<std::byte> build(Session& session, std::size_t place, wire::DataHeader header,
                             std::span<const std::byte> payload) noexcept;
  void send(Session& session, std::span<const std::span<const std::byte>> datagrams) noexcept;

  Transport& transport_;
  DataCounters& counters_;
  PageBuffer memory_;  // kMaxSendBatch datagrams
};

}  // namespace duckfleet::duckd
