// Number formats: what a stored code is worth, and how an f32 becomes one. docs/formats.md is the contract.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace duckfleet::kernels {

enum class Format : std::uint8_t { kF32 = 0, kBf16 = 1, kE4m3 = 2, kFp9 = 3 };

inline constexpr std::uint32_t kNumFormats = 4;
inline constexpr std::uint32_t kTile = 128;      // rows and columns that share one scale
inline constexpr std::uint32_t kPanelRows = 16;  // output rows interleaved along k
inline constexpr std::uint32_t kBlockK = 16;     // columns of one block of a panel

[[gnu::always_inline]] constexpr bool has_scales(Format format) noexcept { return format == Format::kE4m3 || format == Format::kFp9; }

const char* format_name(Format format) noexcept;
std::optional<Format> format_by_name(std::string_view name) noexcept;

// Tiles of 128 that [start, start + count) touches; 0 for an empty range.
constexpr std::uint32_t tiles_touched(std::uint32_t start, std::uint32_t count) noexcept {
  return count == 0 ? 0
                    : static_cast<std::uint32_t>((std::uint64_t{start} + count + kTile - 1) / kTile) - start / kTile;
}

// e4m3: an OCP e4m3fn code, 0..255. fp9: sign << 8 | body, 0..511. NaN (and fp9's exponent 31) gives a NaN.
float decode_e4m3(std::uint32_t code) noexcept;
float decode_fp9(std::uint32_t code) noexcept;
inline bool is_nan_e4m3(std::uint32_t code) noexcept { return (code & 0x7F) == 0x7F; }
inline bool is_nan_fp9(std::uint32_t code) noexcept { return (code & 0xF8) == 0xF8; }

// Nearest code, ties to even, saturating at the largest finite code. `value` must not be NaN.
std::uint32_t encode_e4m3(float value) noexcept;
std::uint32_t encode_fp9(float value) noexcept;
std::uint16_t encode_bf16(float value) noexcept;  // ties to even; does not saturate

// A rounded matrix [rows, cols]; every pointer is to row-major arrays that the caller owns.
struct RoundedTiles {
  std::uint8_t* codes;   // e4m3 codes, or fp9 bodies
  std::uint8_t* signs;   // fp9: 0 or 1 a weight; null for e4m3
  float* scales;         // [ceil(rows / 128), ceil(cols / 128)]
};

struct Position {
  std::uint64_t row, col;
};

// Rounds to e4m3 or fp9 with one scale a tile (amax / 448, or 1 where that is zero). Gives the position of the first
// weight that is not finite, and then the output is not to be used.
std::optional<Position> quantize_tiles(Format format, const float* weights, std::uint64_t rows, std::uint64_t cols,
                                       const RoundedTiles& out) noexcept;

}  // namespace duckfleet::kernels
