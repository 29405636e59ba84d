// Rounding of activations: exact values come back exactly, everything else goes to the nearest even neighbour.
#include "activations.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "check.hpp"

using duckfleet::fabric::round_activations;
using duckfleet::wire::WireDtype;

namespace {

std::uint16_t rounded(float value, WireDtype dtype) {
  std::uint16_t bits = 0;
  round_activations({&value, 1}, dtype, std::as_writable_bytes(std::span(&bits, 1)));
  return bits;
}

// The value of 16 bits with `exponent_bits` and `mantissa_bits`, slowly.
double value_of(std::uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

void check_every_value(WireDtype dtype, int exponent_bits, int mantissa_bits) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto b = static_cast<std::uint16_t>(bits);
    const double value = value_of(b, exponent_bits, mantissa_bits);
    if (std::isnan(value)) continue;
    CHECK(rounded(static_cast<float>(value), dtype) == b);
  }
  CHECK(std::isnan(value_of(rounded(std::nanf(""), dtype), exponent_bits, mantissa_bits)));
}

void check_nearest(WireDtype dtype, int exponent_bits, int mantissa_bits) {
  std::mt19937 random(7);
  for (int i = 0; i < 300000; ++i) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!std::isfinite(x)) continue;
    const std::uint16_t r = rounded(x, dtype);
    const double got = value_of(r, exponent_bits, mantissa_bits);
    if (std::isinf(got)) continue;
    const double error = std::fabs(got - x);
    for (const int step : {-1, 1}) {
      const int magnitude = (r & 0x7FFF) + step;
      if (magnitude < 0) continue;
      const auto neighbour = static_cast<std::uint16_t>((r & 0x8000) | magnitude);
      const double other = std::fabs(value_of(neighbour, exponent_bits, mantissa_bits) - x);
      CHECK(error < other || (error == other && (r & 1) == 0));
    }
  }
}

}  // namespace

int main() {
  check_every_value(WireDtype::kF16, 5, 10);
  check_every_value(WireDtype::kBf16, 8, 7);
  check_nearest(WireDtype::kF16, 5, 10);
  check_nearest(WireDtype::kBf16, 8, 7);
  CHECK(rounded(65519.0F, WireDtype::kF16) == 0x7BFF);
  CHECK(rounded(65520.0F, WireDtype::kF16) == 0x7C00);
  const std::vector<float> x = {1.5F, -0.0F};
  std::vector<float> copy(2);
  round_activations(x, WireDtype::kF32, std::as_writable_bytes(std::span(copy)));
  CHECK(std::memcmp(copy.data(), x.data(), sizeof(float) * 2) == 0);
}
