// Datagrams: from bytes that anybody may have sent to a header whose every field is within bounds, or the reason to
// drop them. No state, no effects; what needs a session to be judged is judged by its owner, with the same reasons.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "wire.hpp"

namespace duckfleet::wire {

// The list of reasons: enumerator, name of the counter in statistics.
#define DUCKFLEET_DROP_REASONS(X)                                                                                  \
  /* by classify() */                                                                                              \
  X(kTooShort, "too_short")                     /* no room for a header */                                          \
  X(kTooLong, "too_long")                       /* longer than any datagram of ours, or cut off on receipt */       \
  X(kBadMagic, "bad_magic")                                                                                         \
  X(kBadVersion, "bad_version")                                                                                     \
  X(kBadKind, "bad_kind")                                                                                           \
  X(kBadLength, "bad_length")                   /* fragment, offset or message disagree with each other or bounds */ \
  X(kBadFragment, "bad_fragment")               /* not cut at kFragmentUnitBytes */                                 \
  X(kBadField, "bad_field")                     /* lane, dtype, tokens, top_k, hidden, part out of bounds */        \
  /* by the owner of a session */                                                                                   \
  X(kNoSession, "no_session")                   /* nothing configured yet */                                        \
  X(kForeignAddress, "foreign_address")         /* not from the peer's address */                                   \
  X(kWrongDirection, "wrong_direction")         /* a kind that the other side is to receive */                      \
  X(kWrongSession, "wrong_session")                                                                                 \
  X(kStaleGeneration, "stale_generation")                                                                           \
  X(kWrongGeneration, "wrong_generation")       /* newer than configured */                                         \
  X(kWrongRank, "wrong_rank")                                                                                       \
  X(kUnknownKey, "unknown_key")                                                                                     \
  X(kReplayed, "replayed")                                                                                          \
  X(kTooOld, "too_old")                         /* sequence below the replay window */                              \
  X(kBadTag, "bad_tag")                                                                                             \
  X(kStaleStep, "stale_step")                                                                                       \
  X(kWrongShape, "wrong_shape")                 /* dtype, hidden or layer are not the session's */                  \
  X(kConflicting, "conflicting")                /* same message, other shape */                                     \
  X(kDuplicateFragment, "duplicate_fragment")                                                                       \
  X(kUnknownMessage, "unknown_message")         /* about a message never seen, or no longer kept */                 \
  X(kNotHeld, "not_held")                       /* nothing of that layer and slice is held here */                  \
  X(kBadRoutes, "bad_routes")                   /* experts not strictly ascending */                                \
  X(kNoSlot, "no_slot")                         /* all places of the lane are taken */                              \
  X(kRateLimited, "rate_limited")               /* echoes outside a session */

enum class DropReason : std::uint8_t {
  kNone = 0,
#define DUCKFLEET_X(enumerator, name) enumerator,
  DUCKFLEET_DROP_REASONS(DUCKFLEET_X)
#undef DUCKFLEET_X
      kCount
};
inline constexpr std::size_t kNumDropReasons = static_cast<std::size_t>(DropReason::kCount);

// Name of the counter; "none" for kNone.
std::string_view name(DropReason reason) noexcept;

inline constexpr std::size_t kMaxDatagramBytes = 65507;  // of UDP over IPv4
inline constexpr std::size_t kMaxFragmentBytes = kMaxDatagramBytes - sizeof(DataHeader);

// Bytes of one activation; 0 for an unknown dtype.
std::size_t element_bytes(WireDtype dtype) noexcept;

// What message_bytes of a whole request or reply of these dimensions must be. At most 2^26, so it fits u32.
std::uint64_t request_bytes(const DataHeader& header) noexcept;
std::uint64_t reply_bytes(const DataHeader& header) noexcept;

struct Datagram {
  DropReason drop = DropReason::kNone;
  DataHeader header{};                  // meaningless unless ok()
  std::span<const std::byte> payload;   // header.fragment_bytes of it

  bool ok() const noexcept { return drop == DropReason::kNone; }
  DataKind kind() const noexcept { return static_cast<DataKind>(header.kind); }
};

// Guarantees when ok(): every enumeration has one of its values; payload.size() == fragment_bytes;
// offset + fragment_bytes <= message_bytes; for a request and a reply message_bytes follows from the dimensions and the
// fragment keeps to kFragmentUnitBytes and is not empty; a nack is whole, in one datagram, with at most kMaxNackRanges.
Datagram classify(std::span<const std::byte> bytes) noexcept;

}  // namespace duckfleet::wire
