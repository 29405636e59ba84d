// The arithmetic is POLYVAL's, as RFC 8452 (appendix A) relates it to GHASH: blocks and results byte-reversed, the hash
// key multiplied by x once. There a block is a little-endian number, dot(a, b) = a b x^-128, and a reduction is two
// multiplications (S. Gueron, "Efficient software implementations of modular exponentiation", section on GHASH).
//
// This file alone is compiled for AVX2 and VPCLMULQDQ, so it instantiates nothing that others could share.
#include "ghash.hpp"

#include <immintrin.h>

namespace duckfleet::wire {
namespace {

constexpr std::size_t kGroupBytes = 256;

inline __m128i load(const void* at) noexcept { return _mm_loadu_si128(static_cast<const __m128i*>(at)); }
inline void store(void* at, __m128i v) noexcept { _mm_storeu_si128(static_cast<__m128i*>(at), v); }

inline __m128i reversed(__m128i v) noexcept {
  return _mm_shuffle_epi8(v, _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}

// Products that still are to be reduced: low, middle and high.
struct Sum {
  __m128i low, middle, high;
};

inline void add_product(Sum& sum, __m128i a, __m128i b) noexcept {
  sum.low = _mm_xor_si128(sum.low, _mm_clmulepi64_si128(a, b, 0x00));
  sum.high = _mm_xor_si128(sum.high, _mm_clmulepi64_si128(a, b, 0x11));
  sum.middle = _mm_xor_si128(sum.middle, _mm_xor_si128(_mm_clmulepi64_si128(a, b, 0x01), _mm_clmulepi64_si128(a, b, 0x10)));
}

// Modulo x^128 + x^127 + x^126 + x^121 + 1, times x^-128.
inline __m128i reduce(const Sum& sum) noexcept {
  const __m128i poly = _mm_set_epi64x(0, static_cast<long long>(0xC200000000000000ULL));
  __m128i low = _mm_xor_si128(sum.low, _mm_slli_si128(sum.middle, 8));
  const __m128i high = _mm_xor_si128(sum.high, _mm_srli_si128(sum.middle, 8));
  low = _mm_xor_si128(_mm_shuffle_epi32(low, 0x4E), _mm_clmulepi64_si128(low, poly, 0x00));
  low = _mm_xor_si128(_mm_shuffle_epi32(low, 0x4E), _mm_clmulepi64_si128(low, poly, 0x00));
  return _mm_xor_si128(low, high);
}

inline __m128i dot(__m128i a, __m128i b) noexcept {
  Sum sum{_mm_setzero_si128(), _mm_setzero_si128(), _mm_setzero_si128()};
  add_product(sum, a, b);
  return reduce(sum);
}

// Times x, without a branch on the value.
inline __m128i times_x(__m128i v) noexcept {
  const __m128i carries = _mm_srli_epi64(v, 63);
  const __m128i top = _mm_shuffle_epi32(_mm_sub_epi64(_mm_setzero_si128(), carries), 0xEE);  // ones when bit 127 is set
  const __m128i poly = _mm_set_epi64x(static_cast<long long>(0xC200000000000000ULL), 1);
  const __m128i shifted = _mm_or_si128(_mm_slli_epi64(v, 1), _mm_slli_si128(carries, 8));
  return _mm_xor_si128(shifted, _mm_and_si128(top, poly));
}

inline __m128i folded(__m256i v) noexcept {
  return _mm_xor_si128(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}

// 16 blocks at once onto `state`.
inline __m128i absorb_group(__m128i state, const std::byte* data, const std::uint8_t (*powers)[16]) noexcept {
  const __m256i reverse = _mm256_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,  //
                                          0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __m256i low = _mm256_setzero_si256(), middle = low, high = low;
  __m256i first = _mm256_zextsi128_si256(state);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    __m256i blocks = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data) + i);
    blocks = _mm256_xor_si256(_mm256_shuffle_epi8(blocks, reverse), first);
    first = _mm256_setzero_si256();
    const __m256i power = _mm256_load_si256(reinterpret_cast<const __m256i*>(powers[2 * i]));
    low = _mm256_xor_si256(low, _mm256_clmulepi64_epi128(blocks, power, 0x00));
    high = _mm256_xor_si256(high, _mm256_clmulepi64_epi128(blocks, power, 0x11));
    middle = _mm256_xor_si256(middle, _mm256_clmulepi64_epi128(blocks, power, 0x01));
    middle = _mm256_xor_si256(middle, _mm256_clmulepi64_epi128(blocks, power, 0x10));
  }
  return reduce({folded(low), folded(middle), folded(high)});
}

}  // namespace

bool fast_ghash_available() noexcept {
  return __builtin_cpu_supports("vpclmulqdq") != 0 && __builtin_cpu_supports("avx2") != 0 &&
         __builtin_cpu_supports("pclmul") != 0;
}

FastGhash FastGhash::from_hash_of_zero_block(const std::uint8_t (&hash)[16]) noexcept {
  // The lengths of 16 bytes of data are, byte-reversed, x^71; so this is key x^(71 - 128), the key times x already.
  __m128i key = reversed(load(hash));
  for (int i = 0; i < 128 - 71; ++i) key = times_x(key);
  FastGhash made;
  __m128i power = key;
  for (int i = 15; i >= 0; --i) {
    store(made.powers_[i], power);
    power = dot(power, key);
  }
  return made;
}

void FastGhash::hash(const std::byte* data, std::size_t size, std::uint8_t (&out)[16]) const noexcept {
  __m128i state = _mm_setzero_si128();
  const std::byte* at = data;
  std::size_t left = size;
  for (; left >= kGroupBytes; at += kGroupBytes, left -= kGroupBytes) state = absorb_group(state, at, powers_);

  // The last blocks, and the lengths after them: each takes the power of how many follow.
  alignas(16) std::uint8_t tail[kGroupBytes] = {};
  __builtin_memcpy(tail, at, left);
  const std::size_t num_blocks = (left + 15) / 16;
  if (num_blocks == 16) state = absorb_group(state, reinterpret_cast<const std::byte*>(tail), powers_);
  const std::size_t rest = num_blocks == 16 ? 0 : num_blocks;
  Sum sum{_mm_setzero_si128(), _mm_setzero_si128(), _mm_setzero_si128()};
  for (std::size_t i = 0; i < rest; ++i) {
    add_product(sum, _mm_xor_si128(reversed(load(tail + 16 * i)), state), load(powers_[15 - (rest - i)]));
    state = _mm_setzero_si128();
  }
  const __m128i lengths = _mm_set_epi64x(static_cast<long long>(size * 8), 0);
  add_product(sum, _mm_xor_si128(lengths, state), load(powers_[15]));
  store(out, reversed(reduce(sum)));
}

void FastGhash::wipe() noexcept {
  __builtin_memset(powers_, 0, sizeof powers_);
  __asm__ volatile("" : : "r"(powers_) : "memory");
}

}  // namespace duckfleet::wire
