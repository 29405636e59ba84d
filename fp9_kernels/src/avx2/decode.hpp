// Stored codes to f32 in AVX2 registers, and the steps that the sums of few and of many tokens share.
//
// Only files compiled for AVX2 and FMA may include this. They may not instantiate any template or inline function of the
// standard library: the linker could pick their copy for the rest of the program. For the same reason everything here is
// inlined always.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "../panel.hpp"
#include "unroll.hpp"

namespace duckfleet::kernels::avx2 {

struct Pair {
  __m256 low, high;  // rows 0..7 and 8..15 of one k
};

// A 16-bit unit with the sign at bit 15 and the magnitude ending at bit 4, seen as the upper half of an f32, is the
// value times 2^-120 (e4m3) or 2^-112 (fp9).
//
// What bounds these loops is the four vector ports, two of which take every fma. So: shifts that a read at another
// address does for nothing, no multiplications (their port is one of the fma's), as few operations as there are.

[[gnu::always_inline]] inline __m256i load(const std::byte* at) noexcept {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(at));
}
[[gnu::always_inline]] inline __m256i loadu(const std::byte* at) noexcept {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

// A read and a mask in one instruction, which the compiler would share with other reads of the same place and then
// spill.
[[gnu::always_inline]] inline __m256 masked(const std::byte* at, __m256i mask) noexcept {
  __m256 out;
  __asm__("vpand %1, %2, %0" : "=x"(out) : "m"(*reinterpret_cast<const __m256i_u*>(at)), "x"(mask));
  return out;
}

// A read that is done again each time, for the same reason.
[[gnu::always_inline]] inline __m256i load_again(const std::byte* at) noexcept {
  __m256i out;
  __asm__ volatile("vmovdqa %1, %0" : "=x"(out) : "m"(*reinterpret_cast<const __m256i*>(at)));
  return out;
}

template <Format F>
[[gnu::always_inline]] inline __m256i unit_mask() noexcept {
  return _mm256_set1_epi32(static_cast<int>(F == Format::kBf16 ? 0xFFFF0000 : F == Format::kE4m3 ? 0x87F00000 : 0x8FF00000));
}

alignas(32) inline constexpr std::uint8_t kSwapBytes[32] = {1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14,
                                                     1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14};

// Rows 0..7 and 8..15 of 16-bit units.
[[gnu::always_inline]] inline Pair split(__m256i units, __m256i mask) noexcept {
  return {_mm256_castsi256_ps(_mm256_and_si256(_mm256_slli_epi32(units, 16), mask)),
          _mm256_castsi256_ps(_mm256_and_si256(units, mask))};
}

// The weights of column k of a block whose vectors are `stride` bytes apart, times the decode's factor.
template <Format F>
[[gnu::always_inline]] inline Pair decode(const std::byte* block, std::uint32_t stride, int k, __m256i mask) noexcept {
  if constexpr (F == Format::kF32) {
    return {_mm256_castsi256_ps(load(block + 2 * k * stride)), _mm256_castsi256_ps(load(block + (2 * k + 1) * stride))};
  } else if constexpr (F == Format::kBf16) {
    const __m256i units = load(block + k * stride);
    return {_mm256_castsi256_ps(_mm256_slli_epi32(units, 16)), _mm256_castsi256_ps(_mm256_and_si256(units, mask))};
  } else if constexpr (F == Format::kE4m3) {
    // The upper byte of each unit moved down by four bits is the odd column; of the units that begin a byte earlier, the
    // even one.
    return split(_mm256_srai_epi16(loadu(block + k / 2 * stride - (1 - k % 2)), 4), mask);
  } else {
    const std::byte* at = block + (1 + k / 2) * stride;
    if (k % 2 == 0) return {masked(at - 2, mask), masked(at, mask)};
    const __m256i swapped = _mm256_shuffle_epi8(load_again(at), load(reinterpret_cast<const std::byte*>(kSwapBytes)));
    return split(_mm256_xor_si256(swapped, _mm256_slli_epi16(load_again(block), k / 2)), mask);
  }
}

// acc += w * x. Written out so that the accumulator stays in its register: the compiler's other forms of the
// instruction made it spill accumulators in the middle of their chains.
[[gnu::always_inline]] inline void fma(__m256& acc, __m256 w, __m256 x) noexcept {
  __asm__("vfmadd231ps %2, %1, %0" : "+x"(acc) : "x"(w), "x"(x));
}

template <Format F>
[[gnu::always_inline]] constexpr float exact_factor() noexcept {
  return F == Format::kE4m3 ? 0x1p120f : F == Format::kFp9 ? 0x1p112f : 1.0f;
}

template <Format F>
[[gnu::always_inline]] constexpr std::uint32_t bytes_of_block() noexcept {
  return static_cast<std::uint32_t>(block_bytes(F));
}

[[gnu::always_inline]] inline void add_to_total(float* total, __m256 low, __m256 high, float scale) noexcept {
  const __m256 s = _mm256_set1_ps(scale);
  _mm256_storeu_ps(total, _mm256_fmadd_ps(low, s, _mm256_loadu_ps(total)));
  _mm256_storeu_ps(total + 8, _mm256_fmadd_ps(high, s, _mm256_loadu_ps(total + 8)));
}

}  // namespace duckfleet::kernels::avx2
