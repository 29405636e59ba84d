// Control frames: from bytes that anybody may have sent to a header and payload within bounds, and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "wire.hpp"

namespace duckfleet::wire {

// What a side answers instead of what was asked: a code for the program, a text for a person.
struct Refusal {
  ErrorCode code = ErrorCode::kInternal;
  std::string text;
};

// "chunk_digest", … ; "unknown" for a number that is no ErrorCode.
std::string_view name(ErrorCode code) noexcept;

// Nothing when magic, version and length are acceptable.
std::optional<Refusal> check_control_header(const ControlHeader& header);

struct ControlFrame {
  ControlHeader header{};
  std::span<const std::byte> payload;

  ControlType type() const noexcept { return static_cast<ControlType>(header.type); }
};

// A whole frame: header, and exactly as many bytes as it announces.
std::optional<Refusal> parse_control_frame(std::span<const std::byte> bytes, ControlFrame& frame);

// Takes a struct off the front of `payload`; false when it is too short.
template <typename T>
bool take(std::span<const std::byte>& payload, T& value) noexcept {
  if (payload.size() < sizeof(T)) return false;
  std::memcpy(&value, payload.data(), sizeof(T));
  payload = payload.subspan(sizeof(T));
  return true;
}

// A payload that is exactly one struct.
template <typename T>
bool take_only(std::span<const std::byte> payload, T& value) noexcept {
  return payload.size() == sizeof(T) && take(payload, value);
}

// Header and payload in one buffer.
std::vector<std::byte> make_control_frame(ControlType type, std::uint32_t request_id,
                                          std::span<const std::byte> payload);

template <typename T>
std::vector<std::byte> bytes_of(const T& value) {
  const auto* data = reinterpret_cast<const std::byte*>(&value);
  return {data, data + sizeof(T)};
}

std::vector<std::byte> error_payload(const Refusal& refusal);

}  // namespace duckfleet::wire
