// Any bytes from any address, in any order with time and requests, to a domain's protocol without tags: no crash, and
// no vector is complete that was not sent whole.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "check.hpp"
#include "domain_protocol.hpp"

using namespace duckfleet;
using namespace duckfleet::fabric;

namespace {

constexpr std::uint32_t kHidden = 64;
constexpr std::size_t kMaxDatagram = 400;

DomainProtocol make() {
  SessionConfig session;
  session.session = 1;
  session.generation = 1;
  session.hidden = kHidden;
  session.max_tokens = 2;
  session.tag_algorithm = wire::TagAlgorithm::kNone;
  DomainConfig domain;
  domain.broadcast = {0xFF, 1};
  domain.fragment_bytes = 128;
  domain.ducks = {{0, {1, 1}, 0, {}}, {1, {2, 1}, 0, {}}};
  domain.vectors = {{0, 0, wire::kWholeSlice}, {1, 1, wire::kWholeSlice}, {0, 2, 0}, {0, 2, 1}};
  domain.vectors_of_layer = {{0, 1}, {0, 1, 2, 3}};
  return {session, domain};
}

// A header that would be right, for the fuzzer to bend: most bytes would otherwise end at the magic.
wire::DataHeader likely(const std::array<std::uint32_t, kNumLanes>& steps, unsigned lane, unsigned kind, unsigned rank) {
  wire::DataHeader h{};
  h.magic = wire::kDataMagic;
  h.version = wire::kVersion;
  h.kind = static_cast<std::uint8_t>(kind);
  h.lane = static_cast<std::uint8_t>(lane);
  h.session = 1;
  h.generation = 1;
  h.step = steps[lane];
  h.layer = static_cast<std::uint16_t>(lane);
  h.part = wire::kWholeSlice;
  h.slice = static_cast<std::uint16_t>(rank);
  h.rank = static_cast<std::uint16_t>(rank);
  h.num_tokens = 1;
  h.hidden = kHidden;
  h.message_bytes = kind == static_cast<unsigned>(wire::DataKind::kReply) ? kHidden * 4 : 0;
  return h;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const bool ready = wire::initialise_crypto();
  CHECK(ready);
  DomainProtocol protocol = make();
  const std::vector<float> x(kHidden, 1.0F);
  std::array<std::uint32_t, kNumLanes> steps{};
  std::uint64_t now = 1;
  std::size_t fed_bytes = 0;  // payload bytes that could have ended in a vector
  const auto begin = [&](unsigned lane) {
    Request request;
    request.step = ++steps[lane];
    request.layer = static_cast<std::uint16_t>(lane);
    request.num_tokens = 1;
    request.activations = std::as_bytes(std::span(x));
    protocol.begin(lane, request, now);
  };
  begin(0);
  begin(1);
  std::size_t at = 0;
  while (at + 4 <= size) {
    const unsigned action = data[at];
    const unsigned choice = data[at + 1];
    const std::size_t wanted = data[at + 2] | (data[at + 3] & 1U) << 8;
    at += 4;
    const std::size_t n = std::min({wanted, size - at, kMaxDatagram});
    if (action % 8 == 0) {
      begin(choice & 1U);
    } else if (action % 8 == 1) {
      now += std::uint64_t{choice} * 1000;
      protocol.on_time(now);
      std::array<OutDatagram, 7> batch;
      while (const std::size_t count = protocol.fill(batch, now)) {
        for (std::size_t i = 0; i < count; ++i) CHECK(batch[i].bytes <= sizeof(wire::DataHeader) + 128);
      }
    } else {
      std::vector<std::byte> bytes(n);
      if (n > 0) std::memcpy(bytes.data(), data + at, n);
      const unsigned rank = choice & 1U;
      if (action % 8 > 2) {
        wire::DataHeader h = likely(steps, choice >> 1 & 1U, 2 + (action >> 3) % 4, rank);
        h.fragment_bytes = static_cast<std::uint32_t>(n);
        if (h.kind != static_cast<std::uint8_t>(wire::DataKind::kReply)) h.message_bytes = h.fragment_bytes;
        if (action % 8 > 5) h.offset = (choice >> 2) % 5 * 64;
        std::vector<std::byte> whole(sizeof h + n);
        std::memcpy(whole.data(), &h, sizeof h);
        if (n > 0) std::memcpy(whole.data() + sizeof h, bytes.data(), n);
        if (action % 8 == 5) whole[choice % whole.size()] ^= std::byte{static_cast<unsigned char>(action)};
        bytes = std::move(whole);
      }
      fed_bytes += bytes.size();
      protocol.on_datagram({bytes.data(), static_cast<std::uint32_t>(bytes.size()), {1 + rank, 1}, false}, now);
      at += n;
    }
  }
  std::size_t held_bytes = 0;
  for (unsigned lane = 0; lane < kNumLanes; ++lane) {
    for (std::size_t v = 0; v < protocol.num_vectors(); ++v) held_bytes += protocol.slot(lane, v).received_bytes();
  }
  CHECK(held_bytes <= fed_bytes);
  return 0;
}
