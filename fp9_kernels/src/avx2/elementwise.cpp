// What is done to each activation by itself.
#include <immintrin.h>

#include "../kernels.hpp"
#include "../silu.hpp"
#include "sums.hpp"
#include "unroll.hpp"

namespace duckfleet::kernels::avx2 {
namespace {

inline __m256 exp_clamped(__m256 t) noexcept {
  t = _mm256_max_ps(t, _mm256_set1_ps(kExpMin));  // the second operand where t is NaN, as in the scalar code
  t = _mm256_min_ps(t, _mm256_set1_ps(kExpMax));
  const __m256 round = _mm256_set1_ps(kRound);
  const __m256 n = _mm256_sub_ps(_mm256_fmadd_ps(t, _mm256_set1_ps(kLog2e), round), round);
  __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2Hi), t);
  r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2Lo), r);
  __m256 p = _mm256_set1_ps(kP[0]);
  UNROLL for (int i = 1; i < 6; ++i) p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kP[i]));
  const __m256 one = _mm256_set1_ps(1.0f);
  p = _mm256_fmadd_ps(p, r, one);
  p = _mm256_fmadd_ps(p, r, one);
  const __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvttps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(p, _mm256_castsi256_ps(exponent));
}

}  // namespace

void silu_mul(const float* gate, const float* up, float weight, float* h, std::uint32_t n) noexcept {
  const __m256 one = _mm256_set1_ps(1.0f), w = _mm256_set1_ps(weight), sign = _mm256_set1_ps(-0.0f);
  for (std::uint32_t j = 0; j < n; j += 8) {
    const __m256 g = _mm256_loadu_ps(gate + j);
    const __m256 s = _mm256_div_ps(g, _mm256_add_ps(one, exp_clamped(_mm256_xor_ps(g, sign))));
    _mm256_storeu_ps(h + j, _mm256_mul_ps(_mm256_mul_ps(s, _mm256_loadu_ps(up + j)), w));
  }
}

bool can_shift(const float* x, std::uint32_t n) noexcept {
  // Magnitude bits, less one, are unsigned-compared through a signed compare: zero wraps to the largest and is let by.
  const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
  const __m256i low = _mm256_set1_epi32(static_cast<int>(kShiftMinBits));
  const __m256i high = _mm256_set1_epi32(static_cast<int>(kShiftMaxBits - 1));
  const __m256i zero = _mm256_setzero_si256();
  __m256i bad = zero;
  std::uint32_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256i bits = _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i)), magnitude);
    const __m256i outside = _mm256_or_si256(_mm256_cmpgt_epi32(low, bits), _mm256_cmpgt_epi32(bits, high));
    bad = _mm256_or_si256(bad, _mm256_andnot_si256(_mm256_cmpeq_epi32(bits, zero), outside));
  }
  if (!_mm256_testz_si256(bad, bad)) return false;
  for (; i < n; ++i) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, x + i, 4);
    bits &= 0x7FFFFFFF;
    if (bits != 0 && (bits < kShiftMinBits || bits >= kShiftMaxBits)) return false;
  }
  return true;
}

void shift(const float* x, float* out, std::uint32_t n) noexcept {
  const __m256 factor = _mm256_set1_ps(0x1p110f);
  std::uint32_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), factor));
  for (; i < n; ++i) out[i] = x[i] * 0x1p110f;
}

}  // namespace duckfleet::kernels::avx2
