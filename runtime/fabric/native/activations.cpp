#include "activations.hpp"

#include <bit>
#include <cstdint>
#include <cstring>

namespace duckfleet::fabric {
namespace {

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);  // NaN stays NaN
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

// IEEE 754 binary32 to binary16, round to nearest even; what is too large becomes infinite.
std::uint16_t to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint16_t>(sign | 0x7E00U);
  if (magnitude >= 0x477FF000U) return static_cast<std::uint16_t>(sign | 0x7C00U);  // 65520 and above
  if (magnitude < 0x38800000U) {
    // Subnormal: adding 0.5 puts the last bit kept at the end of the mantissa, and the hardware rounds.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U));
  }
  const std::uint32_t rounded = magnitude - 0x38000000U + 0xFFFU + ((magnitude >> 13) & 1U);
  return static_cast<std::uint16_t>(sign | (rounded >> 13));
}

}  // namespace

void round_activations(std::span<const float> x, wire::WireDtype dtype, std::span<std::byte> to) {
  if (dtype == wire::WireDtype::kF32) {
    std::memcpy(to.data(), x.data(), x.size_bytes());
    return;
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::uint16_t bits = dtype == wire::WireDtype::kF16 ? to_f16(x[i]) : to_bf16(x[i]);
    std::memcpy(to.data() + 2 * i, &bits, sizeof bits);
  }
}

}  // namespace duckfleet::fabric
