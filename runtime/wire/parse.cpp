#include "parse.hpp"

#include <array>
#include <cstring>

namespace duckfleet::wire {
namespace {

DropReason check_fragment(const DataHeader& h) noexcept {
  const std::uint64_t end = std::uint64_t{h.offset} + h.fragment_bytes;
  if (h.fragment_bytes == 0 || end > h.message_bytes) return DropReason::kBadLength;
  if (h.offset % kFragmentUnitBytes != 0) return DropReason::kBadFragment;
  if (h.fragment_bytes % kFragmentUnitBytes != 0 && end != h.message_bytes) return DropReason::kBadFragment;
  return DropReason::kNone;
}

DropReason check_dimensions(const DataHeader& h) noexcept {
  if (h.num_tokens == 0 || h.num_tokens > kMaxTokens) return DropReason::kBadField;
  if (h.top_k > kMaxTopK) return DropReason::kBadField;
  if (h.hidden == 0 || h.hidden > kMaxHidden) return DropReason::kBadField;
  return DropReason::kNone;
}

DropReason check_request(const DataHeader& h) noexcept {
  if (const auto drop = check_dimensions(h); drop != DropReason::kNone) return drop;
  if (h.slice != kAsAssigned && h.part == 0) return DropReason::kBadField;  // a mask that asks for nothing
  if (h.message_bytes != request_bytes(h)) return DropReason::kBadLength;
  return check_fragment(h);
}

DropReason check_reply(const DataHeader& h) noexcept {
  if (const auto drop = check_dimensions(h); drop != DropReason::kNone) return drop;
  if (h.slice >= kMaxTp || (h.part >= 8 && h.part != kWholeSlice)) return DropReason::kBadField;
  if (h.message_bytes != reply_bytes(h)) return DropReason::kBadLength;
  return check_fragment(h);
}

// Kinds whose message is always one datagram.
DropReason check_single(const DataHeader& h) noexcept {
  return h.offset == 0 && h.message_bytes == h.fragment_bytes ? DropReason::kNone : DropReason::kBadLength;
}

DropReason check_nack(const DataHeader& h) noexcept {
  if (const auto drop = check_single(h); drop != DropReason::kNone) return drop;
  if (h.fragment_bytes % sizeof(Range) != 0) return DropReason::kBadLength;
  return h.fragment_bytes / sizeof(Range) <= kMaxNackRanges ? DropReason::kNone : DropReason::kBadLength;
}

DropReason check(const DataHeader& h) noexcept {
  if (h.lane > 1) return DropReason::kBadField;
  if (element_bytes(static_cast<WireDtype>(h.wire_dtype)) == 0) return DropReason::kBadField;
  switch (static_cast<DataKind>(h.kind)) {
    case DataKind::kRequest:
      return check_request(h);
    case DataKind::kReply:
      return check_reply(h);
    case DataKind::kNackRequest:
    case DataKind::kNackReply:
      return check_nack(h);
    case DataKind::kBusy:
      return h.fragment_bytes == 0 ? check_single(h) : DropReason::kBadLength;
    case DataKind::kEcho:
    case DataKind::kEchoReply:
      return check_single(h);
  }
  return DropReason::kBadKind;
}

}  // namespace

std::string_view name(DropReason reason) noexcept {
  static constexpr std::array<std::string_view, kNumDropReasons> kNames = {
      "none",
#define DUCKFLEET_X(enumerator, text) text,
      DUCKFLEET_DROP_REASONS(DUCKFLEET_X)
#undef DUCKFLEET_X
  };
  const auto index = static_cast<std::size_t>(reason);
  return index < kNames.size() ? kNames[index] : "unknown";
}

std::size_t element_bytes(WireDtype dtype) noexcept {
  switch (dtype) {
    case WireDtype::kF32:
      return 4;
    case WireDtype::kF16:
    case WireDtype::kBf16:
      return 2;
  }
  return 0;
}

std::uint64_t request_bytes(const DataHeader& h) noexcept {
  const std::uint64_t routes = std::uint64_t{h.num_tokens} * h.top_k * sizeof(Route);
  const std::uint64_t element = element_bytes(static_cast<WireDtype>(h.wire_dtype));
  return routes + std::uint64_t{h.num_tokens} * h.hidden * element;
}

std::uint64_t reply_bytes(const DataHeader& h) noexcept {
  return std::uint64_t{h.num_tokens} * h.hidden * sizeof(float);
}

Datagram classify(std::span<const std::byte> bytes) noexcept {
  Datagram out;
  if (bytes.size() < sizeof(DataHeader)) {
    out.drop = DropReason::kTooShort;
    return out;
  }
  if (bytes.size() > kMaxDatagramBytes) {
    out.drop = DropReason::kTooLong;
    return out;
  }
  std::memcpy(&out.header, bytes.data(), sizeof(DataHeader));
  if (out.header.magic != kDataMagic) {
    out.drop = DropReason::kBadMagic;
  } else if (out.header.version != kVersion) {
    out.drop = DropReason::kBadVersion;
  } else if (out.header.fragment_bytes != bytes.size() - sizeof(DataHeader)) {
    out.drop = DropReason::kBadLength;
  } else {
    out.payload = bytes.subspan(sizeof(DataHeader));
    out.drop = check(out.header);
  }
  return out;
}

}  // namespace duckfleet::wire
