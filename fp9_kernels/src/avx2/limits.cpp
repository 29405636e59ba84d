// The machine's limits as AVX2 code sees them: read loops with several prefetch distances, and the FMA peak.
#include <immintrin.h>

#include "../bench.hpp"

namespace duckfleet::kernels {
namespace {

template <std::uint32_t Ahead>
std::uint64_t read_loop(const std::byte* data, std::uint64_t bytes) noexcept {
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  for (std::uint64_t at = 0; at + 256 <= bytes; at += 256) {
    const __m256i* p = reinterpret_cast<const __m256i*>(data + at);
    if constexpr (Ahead != 0) {
      const char* ahead = reinterpret_cast<const char*>(data + at) + Ahead;
      _mm_prefetch(ahead, _MM_HINT_T0);
      _mm_prefetch(ahead + 64, _MM_HINT_T0);
      _mm_prefetch(ahead + 128, _MM_HINT_T0);
      _mm_prefetch(ahead + 192, _MM_HINT_T0);
    }
    a = _mm256_xor_si256(a, _mm256_xor_si256(_mm256_load_si256(p), _mm256_load_si256(p + 1)));
    b = _mm256_xor_si256(b, _mm256_xor_si256(_mm256_load_si256(p + 2), _mm256_load_si256(p + 3)));
    c = _mm256_xor_si256(c, _mm256_xor_si256(_mm256_load_si256(p + 4), _mm256_load_si256(p + 5)));
    d = _mm256_xor_si256(d, _mm256_xor_si256(_mm256_load_si256(p + 6), _mm256_load_si256(p + 7)));
  }
  const __m256i all = _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d));
  return static_cast<std::uint64_t>(_mm256_extract_epi64(all, 0) ^ _mm256_extract_epi64(all, 1) ^
                                    _mm256_extract_epi64(all, 2) ^ _mm256_extract_epi64(all, 3));
}

}  // namespace

std::uint64_t read_all(std::uint32_t loop, const std::byte* data, std::uint64_t bytes) noexcept {
  switch (loop) {
    case 0: return read_loop<kReadAhead[0]>(data, bytes);
    case 1: return read_loop<kReadAhead[1]>(data, bytes);
    case 2: return read_loop<kReadAhead[2]>(data, bytes);
    case 3: return read_loop<kReadAhead[3]>(data, bytes);
    default: return read_loop<kReadAhead[4]>(data, bytes);
  }
}

std::uint64_t fma_flops(std::uint64_t iterations) noexcept {
  // 12 chains in named registers: nothing for a compiler to spill, reorder or drop.
  std::uint64_t n = iterations;
  __asm__ volatile(
      "vxorps %%ymm12, %%ymm12, %%ymm12\n\t"
      "vxorps %%ymm13, %%ymm13, %%ymm13\n\t"
      "vxorps %%ymm0, %%ymm0, %%ymm0\n\t"
      "vxorps %%ymm1, %%ymm1, %%ymm1\n\t"
      "vxorps %%ymm2, %%ymm2, %%ymm2\n\t"
      "vxorps %%ymm3, %%ymm3, %%ymm3\n\t"
      "vxorps %%ymm4, %%ymm4, %%ymm4\n\t"
      "vxorps %%ymm5, %%ymm5, %%ymm5\n\t"
      "vxorps %%ymm6, %%ymm6, %%ymm6\n\t"
      "vxorps %%ymm7, %%ymm7, %%ymm7\n\t"
      "vxorps %%ymm8, %%ymm8, %%ymm8\n\t"
      "vxorps %%ymm9, %%ymm9, %%ymm9\n\t"
      "vxorps %%ymm10, %%ymm10, %%ymm10\n\t"
      "vxorps %%ymm11, %%ymm11, %%ymm11\n\t"
      ".p2align 5\n"
      "1:\n\t"
      "vfmadd231ps %%ymm12, %%ymm13, %%ymm0\n\t"
      "vfmadd231ps %%ymm12, %%ymm13, %%ymm1\n\t"
      "vfmadd231ps %%ymm12, %%ymm13, %%ymm2\n\t"
      "vfmadd231ps %%ymm12, %%ymm13, %%ymm3\n\t"
      "vfmadd231ps %%ymm12, %%ymm13, %%ymm4\n\t"
      "vfmadd231ps %%ymm12, %%ymm13, %%ymm5\n\t"
      "vfmadd231ps %%ymm12, %%ymm13, %%ymm6\n\t"
      "vfmadd231ps %%ymm12, %%ymm13, %%ymm7\n\t"
      "vfmadd231ps %%ymm12, %%ymm13, %%ymm8\n\t"
      "vfmadd231ps %%ymm12, %%ymm13, %%ymm9\n\t"
      "vfmadd231ps %%ymm12, %%ymm13, %%ymm10\n\t"
      "vfmadd231ps %%ymm12, %%ymm13, %%ymm11\n\t"
      "dec %0\n\t"
      "jnz 1b\n\t"
      "vzeroupper"
      : "+r"(n)
      :
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
        "xmm13");
  return iterations * 12 * 8 * 2;
}

}  // namespace duckfleet::kernels
