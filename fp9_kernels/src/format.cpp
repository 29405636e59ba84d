#include "format.hpp"

#include <bit>
#include <cmath>
#include <limits>

namespace duckfleet::kernels {
namespace {

constexpr const char* kNames[kNumFormats] = {"f32", "bf16", "e4m3", "fp9"};

// Nearest code of a small float format with 3 mantissa bits, ties to even, as magnitude bits.
// `bias` is the format's exponent bias, `max_code` its largest finite magnitude code.
std::uint32_t encode_magnitude(float value, int bias, std::uint32_t max_code) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFF;
  const int min_normal_exponent = 1 - bias + 127;  // as an f32 exponent field
  if (static_cast<int>(bits >> 23) < min_normal_exponent) {
    // Subnormal in the target: adding 1.5 * 2^(23 - log2(ulp)) makes the FPU round to its ulp. The sum lies in the
    // binade of the constant, whose ulp is the target's, so the low mantissa bits are the code.
    const float magic = std::bit_cast<float>(static_cast<std::uint32_t>(min_normal_exponent - 3 + 23) << 23);
    const float sum = std::bit_cast<float>(bits) + magic;
    return std::bit_cast<std::uint32_t>(sum) - std::bit_cast<std::uint32_t>(magic);
  }
  const std::uint32_t rounded = bits + 0x7FFFF + ((bits >> 20) & 1);
  const std::uint32_t code = (rounded >> 20) - (static_cast<std::uint32_t>(127 - bias) << 3);
  return code > max_code ? max_code : code;
}

float decode_magnitude(std::uint32_t magnitude, int bias) noexcept {
  const int exponent = static_cast<int>(magnitude >> 3);
  const int mantissa = static_cast<int>(magnitude & 7);
  return exponent == 0 ? std::ldexp(static_cast<float>(mantissa), 1 - bias - 3)
                       : std::ldexp(static_cast<float>(8 + mantissa), exponent - bias - 3);
}

}  // namespace

const char* format_name(Format format) noexcept { return kNames[static_cast<std::uint8_t>(format)]; }

std::optional<Format> format_by_name(std::string_view name) noexcept {
  for (std::uint8_t i = 0; i < kNumFormats; ++i)
    if (name == kNames[i]) return static_cast<Format>(i);
  return std::nullopt;
}

float decode_e4m3(std::uint32_t code) noexcept {
  if (is_nan_e4m3(code)) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = decode_magnitude(code & 0x7F, 7);
  return code & 0x80 ? -magnitude : magnitude;
}

float decode_fp9(std::uint32_t code) noexcept {
  if (is_nan_fp9(code)) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = decode_magnitude(code & 0xFF, 15);
  return code & 0x100 ? -magnitude : magnitude;
}

std::uint32_t encode_e4m3(float value) noexcept {
  return encode_magnitude(value, 7, 0x7E) | (std::signbit(value) ? 0x80u : 0u);
}

std::uint32_t encode_fp9(float value) noexcept {
  return encode_magnitude(value, 15, 0xF7) | (std::signbit(value) ? 0x100u : 0u);
}

std::uint16_t encode_bf16(float value) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

std::optional<Position> quantize_tiles(Format format, const float* weights, std::uint64_t rows, std::uint64_t cols,
                                       const RoundedTiles& out) noexcept {
  const std::uint64_t tile_cols = (cols + kTile - 1) / kTile;
  for (std::uint64_t r0 = 0; r0 < rows; r0 += kTile) {
    for (std::uint64_t c0 = 0; c0 < cols; c0 += kTile) {
      const std::uint64_t r1 = r0 + kTile < rows ? r0 + kTile : rows;
      const std::uint64_t c1 = c0 + kTile < cols ? c0 + kTile : cols;
      std::uint32_t amax_bits = 0;  // magnitudes of floats order like their bits
      for (std::uint64_t r = r0; r < r1; ++r)
        for (std::uint64_t c = c0; c < c1; ++c) {
          const std::uint32_t bits = std::bit_cast<std::uint32_t>(weights[r * cols + c]) & 0x7FFFFFFF;
          amax_bits = bits > amax_bits ? bits : amax_bits;
        }
      if (amax_bits >= 0x7F800000) {
        for (std::uint64_t r = r0; r < r1; ++r)
          for (std::uint64_t c = c0; c < c1; ++c)
            if (!std::isfinite(weights[r * cols + c])) return Position{r, c};
      }
      float scale = std::bit_cast<float>(amax_bits) / 448.0f;
      if (scale == 0.0f) scale = 1.0f;
      out.scales[(r0 / kTile) * tile_cols + c0 / kTile] = scale;
      for (std::uint64_t r = r0; r < r1; ++r)
        for (std::uint64_t c = c0; c < c1; ++c) {
          const float value = weights[r * cols + c] / scale;
          if (format == Format::kE4m3) {
            out.codes[r * cols + c] = static_cast<std::uint8_t>(encode_e4m3(value));
          } else {
            const std::uint32_t code = encode_fp9(value);
            out.codes[r * cols + c] = static_cast<std::uint8_t>(code & 0xFF);
            out.signs[r * cols + c] = static_cast<std::uint8_t>(code >> 8);
          }
        }
    }
  }
  return std::nullopt;
}

}  // namespace duckfleet::kernels
