// Compiled for AVX2 and FMA.
#include <immintrin.h>

#include "../host_kernels.hpp"

#define HOST_ISA avx2

namespace duckfleet::host::avx2 {

struct Vec {
  __m256 v;
};
inline Vec load(const float* p) noexcept { return {_mm256_loadu_ps(p)}; }
inline void store(float* p, Vec a) noexcept { _mm256_storeu_ps(p, a.v); }
inline Vec all(float x) noexcept { return {_mm256_set1_ps(x)}; }
inline Vec operator+(Vec a, Vec b) noexcept { return {_mm256_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) noexcept { return {_mm256_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) noexcept { return {_mm256_mul_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) noexcept { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec larger(Vec a, Vec b) noexcept { return {_mm256_max_ps(a.v, b.v)}; }
// n is a whole number, within the exponents of f32
inline Vec times_power_of_two(Vec p, Vec n) noexcept {
  const __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvttps_epi32(n.v), _mm256_set1_epi32(127)), 23);
  return {_mm256_mul_ps(p.v, _mm256_castsi256_ps(exponent))};
}

}  // namespace duckfleet::host::avx2

#include "../kernels_body.hpp"

namespace duckfleet::host {

const HostKernels& avx2_host_kernels() noexcept {
  static constexpr HostKernels kernels{"avx2", avx2::rms_norm, avx2::add, avx2::rotate, avx2::attend};
  return kernels;
}

}  // namespace duckfleet::host
