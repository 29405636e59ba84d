// What a fabric is told at the start of a session, and never again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "auth.hpp"
#include "wire.hpp"

namespace duckfleet::fabric {

// An IPv4 address and UDP port, both in network byte order as sockets want them.
struct Endpoint {
  std::uint32_t address_be = 0;
  std::uint16_t port_be = 0;
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

using KeyBytes = std::array<std::uint8_t, wire::kDatagramKeyBytes>;

struct DuckConfig {
  std::uint16_t rank = 0;
  Endpoint endpoint;
  std::uint32_t key_id = 0;  // of the key for this duck's replies and for what is sent to it alone
  KeyBytes key{};
};

// A vector that the host waits for: which duck (index in its domain) computes which slice. A duck computes its own
// slice whole (as assigned, asked for by broadcast), and parts of others' when a request to it alone says so.
struct VectorSpec {
  std::uint16_t duck = 0;
  std::uint16_t slice = 0;
  std::uint8_t part = wire::kWholeSlice;
};

// What the ducks of one domain owe. Immutable: a request keeps the duties with which it was sent, whatever comes after.
struct DomainDuties {
  std::vector<VectorSpec> vectors;
  // By layer: indices into `vectors` of those that this layer has (a slice may be empty in a layer).
  std::vector<std::vector<std::uint16_t>> vectors_of_layer;
};

struct DomainConfig {
  std::string name;
  Endpoint host;
  Endpoint broadcast;
  std::uint32_t fragment_bytes = 0;  // payload bytes in one datagram at most
  std::uint32_t key_id = 0;          // of the key for broadcasts
  KeyBytes key{};
  std::vector<DuckConfig> ducks;
  // At the start, as in `DomainDuties`.
  std::vector<VectorSpec> vectors;
  std::vector<std::vector<std::uint16_t>> vectors_of_layer;
};

struct TimerConfig {
  std::uint32_t min_probe_us = 3'000;    // no duck is asked for its reply sooner than this after the request
  std::uint32_t max_probe_us = 100'000;  // back-off stops doubling here
  std::uint32_t gap_us = 1'000;          // silence within a reply after which its holes are asked for
};

struct SessionConfig {
  std::uint64_t session = 0;
  std::uint32_t generation = 0;
  std::uint32_t hidden = 0;
  std::uint32_t max_tokens = wire::kMaxTokens;  // of one request, at most; the receive buffers may ask for fewer
  std::uint32_t max_request_bytes = 1U << 20;    // activations in one request, so that ducks' buffers hold two
  wire::WireDtype wire_dtype = wire::WireDtype::kF32;
  wire::TagAlgorithm tag_algorithm = wire::TagAlgorithm::kAes256Gmac;
  TimerConfig timers;
};

}  // namespace duckfleet::fabric
