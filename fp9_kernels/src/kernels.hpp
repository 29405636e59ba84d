// The table of functions that one implementation (an instruction set) provides. All of them give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "panel.hpp"

namespace duckfleet::kernels {

// A shifted call leaves the decode's factor in the weights and has 2^110 in the activations instead (docs/formats.md,
// "Decoding"). It pays off while a decoded weight is used by few tokens: up to so many, kernels decode in registers.
inline constexpr std::uint32_t kMaxShiftTokens = 4;
inline constexpr int kShiftExponent = 110;
inline constexpr std::uint32_t kTileFloats = kTile * kPanelRows;  // scratch of one thread, 64-byte aligned

struct AccumulateArgs {
  const MatrixView* matrix;
  std::uint32_t panel0, num_panels;  // panels to compute
  std::uint32_t tile0, num_tiles;    // tiles along k to go through; totals carry over from tile to tile
  const float* const* x;             // [num_tokens] pointers to padded columns of the whole matrix, 64-byte aligned
  float* const* totals;              // [num_tokens] pointers to [num_panels * 16] sums, read and written, 32-byte aligned
  std::uint32_t num_tokens;
  bool shifted;                      // e4m3 and fp9 only: x holds x * 2^kShiftExponent
  float* scratch;                    // [kTileFloats]
  std::uint32_t panel_gap = 0;       // not 0: num_panels more from panel0 + panel_gap on; their sums follow in `totals`
  std::uint32_t prefetch_bytes = 0;  // how far ahead of its reads a kernel asks for weights (tuning.hpp); changes no bits
};

struct Kernels {
  const char* name;
  // totals[t][o] continues the canonical sum of output o over the tiles asked for.
  void (*accumulate)(const AccumulateArgs& args) noexcept;
  // The values of one block as f32 [16 k][16 rows], scales not applied. Its vectors are `stride` bytes apart.
  void (*decode_block)(Format format, const std::byte* block, std::uint32_t stride, float* out) noexcept;
  // h[j] = silu(gate[j]) * up[j] * weight, left to right. `n` is a multiple of 8.
  void (*silu_mul)(const float* gate, const float* up, float weight, float* h, std::uint32_t n) noexcept;
  // Whether every x is zero or in the range where a shifted call gives the same bits.
  bool (*can_shift)(const float* x, std::uint32_t n) noexcept;
  // out[i] = x[i] * 2^kShiftExponent
  void (*shift)(const float* x, float* out, std::uint32_t n) noexcept;
  bool prefetches;  // whether prefetch_bytes means anything to it
};

// Range of |x| for a shifted call: x = 0 or 2^-107 <= |x| < 2^17. Then no code's product and no sum of products goes
// below f32's subnormal grid or above its largest value, in the scaled chain or in the true one; every rounding
// happens at the same bit of both.
inline constexpr std::uint32_t kShiftMinBits = (127u - 107u) << 23;
inline constexpr std::uint32_t kShiftMaxBits = (127u + 17u) << 23;

// What is left in an accumulator of a shifted call is sum * 2^kShiftExponent * (the decode's factor); its scale is
// multiplied by the inverse.
[[gnu::always_inline]] constexpr float shift_undo(Format format) noexcept {
  switch (format) {
    case Format::kE4m3: return 1024.0f;  // 2^(120 - 110)
    case Format::kFp9: return 4.0f;      // 2^(112 - 110)
    default: return 1.0f;                // f32 and bf16 are never shifted
  }
}

}  // namespace duckfleet::kernels
