// A request put together from fragments that come in any order, any number of times. No socket, no clock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "page_buffer.hpp"
#include "parse.hpp"
#include "wire.hpp"

namespace duckfleet::duckd {

class Assembly {
 public:
  // Room for requests of at most kMaxTokens tokens of `hidden` elements. False: no memory.
  bool reserve(std::uint32_t hidden, wire::WireDtype dtype);

  // Starts anew for the message that `header` (a classified request within the reserved bounds) belongs to.
  void begin(const wire::DataHeader& header) noexcept;

  enum class Added : std::uint8_t { kNew, kComplete, kDuplicate, kConflicting };

  // A classified fragment of the same message identity. kComplete is answered once, for the fragment that made it whole.
  Added add(const wire::DataHeader& header, std::span<const std::byte> payload) noexcept;

  bool complete() const noexcept { return num_missing_ == 0; }

  // The missing ranges, lowest first, at most kMaxNackRanges of them.
  std::vector<wire::Range> missing() const;

  const wire::DataHeader& header() const noexcept { return header_; }  // of the fragment that began it

  // What is there without a hole: all routes, and how many leading columns of every token's activations. Of a request of
  // at most kMaxTokensFollowed tokens; of a longer one nothing is said before it is complete.
  static constexpr std::uint32_t kMaxTokensFollowed = 8;
  bool has_routes() const noexcept;
  std::uint32_t columns_ready() noexcept;

  // Routes [num_tokens][top_k]; activations start at a multiple of 64 bytes. Bytes that have arrived do not change.
  std::span<const wire::Route> routes() const noexcept;
  std::span<const std::byte> activations() const noexcept;

 private:
  bool has(std::uint32_t unit) const noexcept { return (received_[unit / 64] >> (unit % 64)) & 1; }
  std::byte* message() noexcept { return memory_.bytes().data() + lead_; }
  const std::byte* message() const noexcept { return memory_.bytes().data() + lead_; }
  std::size_t routes_bytes() const noexcept { return std::size_t{header_.num_tokens} * header_.top_k * sizeof(wire::Route); }
  std::size_t token_bytes() const noexcept { return (header_.message_bytes - routes_bytes()) / header_.num_tokens; }

  wire::DataHeader header_{};
  PageBuffer memory_;
  std::size_t lead_ = 0;  // bytes left free in front, so that the activations are aligned
  std::vector<std::uint64_t> received_;  // a bit for each unit of kFragmentUnitBytes
  std::uint32_t num_units_ = 0;
  std::uint32_t num_missing_ = 0;
  std::array<std::uint32_t, kMaxTokensFollowed> next_unit_{};  // by token: the first that may be missing from its columns
};

// Experts of each token strictly ascending, as the canonical sum takes them.
bool routes_ascend(std::span<const wire::Route> routes, std::uint32_t top_k) noexcept;

}  // namespace duckfleet::duckd
