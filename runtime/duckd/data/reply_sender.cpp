#include "reply_sender.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>

#include "parse.hpp"

namespace duckfleet::duckd {

ReplySender::ReplySender(Transport& transport, DataCounters& counters) : transport_(transport), counters_(counters) {
  auto memory = PageBuffer::anonymous(kMaxSendBatch * wire::kMaxDatagramBytes);
  if (!memory) throw std::bad_alloc();
  memory_ = std::move(*memory);
}

std::span<std::byte> ReplySender::build(Session& session, std::size_t place, wire::DataHeader header,
                                        std::span<const std::byte> payload) noexcept {
  // Close together in memory: whatever the fragment size, only what is used is touched.
  const std::size_t stride = sizeof header + std::max<std::size_t>(session.config().reply_fragment_bytes, payload.size());
  const auto datagram = memory_.bytes().subspan(place * stride, sizeof header + payload.size());
  header.fragment_bytes = static_cast<std::uint32_t>(payload.size());
  std::memcpy(datagram.data(), &header, sizeof header);
  if (!payload.empty()) std::memcpy(datagram.data() + sizeof header, payload.data(), payload.size());
  session.duck_key().seal(datagram, wire::Direction::kDuckToHost, session.take_sequence());
  return datagram;
}

void ReplySender::send(Session& session, std::span<const std::span<const std::byte>> datagrams) noexcept {
  const std::size_t sent = transport_.send(datagrams, session.host());
  std::uint64_t bytes = 0;
  for (const auto& datagram : datagrams.first(sent)) bytes += datagram.size();
  counters_.datagrams_sent.add(sent);
  counters_.bytes_sent.add(bytes);
  if (sent < datagrams.size()) counters_.send_failures.add(datagrams.size() - sent);
}

std::uint32_t ReplySender::send_vector(Session& session, Slot& slot, std::size_t vector, std::uint32_t begin,
                                       std::uint32_t end, std::size_t max_fragments) noexcept {
  const std::uint32_t fragment_bytes = session.config().reply_fragment_bytes;
  const ResultVector& result = slot.vectors[vector];
  wire::DataHeader header = session.header_for(wire::DataKind::kReply, slot.assembly.header());
  header.slice = result.slice;
  header.part = result.part;
  header.message_bytes = static_cast<std::uint32_t>(wire::reply_bytes(header));
  end = std::min(end, header.message_bytes);

  std::array<std::span<const std::byte>, kMaxSendBatch> batch;
  while (begin < end && max_fragments > 0) {
    std::size_t count = 0;
    while (begin < end && count < std::min(kMaxSendBatch, max_fragments)) {
      const std::uint32_t size = std::min(fragment_bytes, end - begin);
      header.offset = begin;
      batch[count] = build(session, count, header, result.memory.bytes().subspan(begin, size));
      begin += size;
      ++count;
    }
    send(session, std::span(batch).first(count));
    max_fragments -= count;
  }
  return begin;
}

void ReplySender::send_single(Session& session, wire::DataKind kind, const wire::DataHeader& about,
                              std::span<const std::byte> payload) noexcept {
  wire::DataHeader header = session.header_for(kind, about);
  header.message_bytes = static_cast<std::uint32_t>(payload.size());
  const std::array<std::span<const std::byte>, 1> batch = {build(session, 0, header, payload)};
  send(session, batch);
}

}  // namespace duckfleet::duckd
