#include "activations.hpp"

#include <bit>
#include <cstring>

namespace duckfleet::duckd {
namespace {

std::uint16_t half_at(std::span<const std::byte> wire, std::size_t i) noexcept {
  std::uint16_t bits;
  std::memcpy(&bits, wire.data() + 2 * i, sizeof bits);
  return bits;
}

float from_bf16(std::uint16_t bits) noexcept { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

// The exponent and mantissa moved to their f32 places are the value times 2^-112, subnormals included; infinities and
// NaN keep an exponent of ones.
float from_f16(std::uint16_t bits) noexcept {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16;
  const std::uint32_t magnitude = bits & 0x7FFFu;
  if (magnitude >= 0x7C00u) return std::bit_cast<float>(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(scaled));
}

}  // namespace

void widen(wire::WireDtype dtype, std::span<const std::byte> wire, std::span<float> out) noexcept {
  switch (dtype) {
    case wire::WireDtype::kF32:
      std::memcpy(out.data(), wire.data(), out.size_bytes());
      return;
    case wire::WireDtype::kF16:
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = from_f16(half_at(wire, i));
      return;
    case wire::WireDtype::kBf16:
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = from_bf16(half_at(wire, i));
      return;
  }
}

}  // namespace duckfleet::duckd
