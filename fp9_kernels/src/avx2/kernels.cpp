// The AVX2 + FMA implementation. This file alone is compiled with those flags, so it may not instantiate any template
// or inline function of the standard library: the linker could pick this copy for the rest of the program.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "../implementations.hpp"
#include "../kernels.hpp"
#include "../silu.hpp"

namespace duckfleet::kernels {
namespace {

// Loops over constant bounds that must be unrolled for speed. Under the sanitizers, which check every access, unrolled
// code takes minutes to compile and finds nothing more.
#ifdef __SANITIZE_ADDRESS__
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

struct Pair {
  __m256 low, high;  // rows 0..7 and 8..15 of one k
};

// ---- decoding -------------------------------------------------------------------------------------------------
// A 16-bit unit with the sign at bit 15 and the magnitude ending at bit 4, seen as the upper half of an f32, is the
// value times 2^-120 (e4m3) or 2^-112 (fp9).

inline __m256i load(const std::byte* at) noexcept { return _mm256_load_si256(reinterpret_cast<const __m256i*>(at)); }

// Column k of a block whose vectors are `stride` bytes apart, as 16-bit units whose bits outside of the format's mask are
// of no meaning. Not for f32.
template <Format F>
inline __m256i units(const std::byte* block, std::uint32_t stride, int k) noexcept {
  if constexpr (F == Format::kBf16) {
    return load(block + k * stride);
  } else if constexpr (F == Format::kE4m3) {
    // A signed byte times 16 is the code with its sign bit repeated, ending at bit 4. (An arithmetic shift does that for
    // the upper byte; doing one of each way uses more of a core's ports.)
    const __m256i codes = load(block + k / 2 * stride);
    return k % 2 == 0 ? _mm256_maddubs_epi16(_mm256_set1_epi16(0x0010), codes) : _mm256_srai_epi16(codes, 4);
  } else {
    const __m256i swap = _mm256_set_epi8(14, 15, 12, 13, 10, 11, 8, 9, 6, 7, 4, 5, 2, 3, 0, 1,  //
                                         14, 15, 12, 13, 10, 11, 8, 9, 6, 7, 4, 5, 2, 3, 0, 1);
    __m256i bodies = load(block + (1 + k / 2) * stride);
    if (k % 2 == 1) bodies = _mm256_shuffle_epi8(bodies, swap);
    return _mm256_xor_si256(bodies, _mm256_slli_epi16(load(block), k));
  }
}

template <Format F>
constexpr std::uint32_t unit_mask() noexcept {
  return F == Format::kBf16 ? 0xFFFF0000 : F == Format::kE4m3 ? 0x87F00000 : 0x8FF00000;
}

// The weights of column k, times the decode's factor. Masks taken from memory leave their registers to the sums.
template <Format F, bool MaskInMemory = false>
inline Pair decode(const std::byte* block, std::uint32_t stride, int k) noexcept {
  if constexpr (F == Format::kF32) {
    return {_mm256_castsi256_ps(load(block + 2 * k * stride)), _mm256_castsi256_ps(load(block + (2 * k + 1) * stride))};
  } else {
    alignas(32) static constexpr std::uint32_t kMask[8] = {unit_mask<F>(), unit_mask<F>(), unit_mask<F>(), unit_mask<F>(),
                                                           unit_mask<F>(), unit_mask<F>(), unit_mask<F>(), unit_mask<F>()};
    __m256i high = units<F>(block, stride, k);
    __m256i low = _mm256_slli_epi32(high, 16);
    if constexpr (MaskInMemory) {
      if constexpr (F != Format::kBf16) __asm__("vpand %1, %0, %0" : "+x"(low) : "m"(kMask));
      __asm__("vpand %1, %0, %0" : "+x"(high) : "m"(kMask));
    } else {
      const __m256i mask = _mm256_set1_epi32(static_cast<int>(unit_mask<F>()));
      if constexpr (F != Format::kBf16) low = _mm256_and_si256(low, mask);
      high = _mm256_and_si256(high, mask);
    }
    return {_mm256_castsi256_ps(low), _mm256_castsi256_ps(high)};
  }
}

// acc += w * x. Written out so that the accumulator stays in its register: the compiler's other forms of the
// instruction made it spill accumulators in the middle of their chains.
inline void fma(__m256& acc, __m256 w, __m256 x) noexcept { __asm__("vfmadd231ps %2, %1, %0" : "+x"(acc) : "x"(w), "x"(x)); }

template <Format F>
constexpr float exact_factor() noexcept {
  return F == Format::kE4m3 ? 0x1p120f : F == Format::kFp9 ? 0x1p112f : 1.0f;
}

template <Format F>
constexpr std::uint32_t bytes_of_block() noexcept {
  return static_cast<std::uint32_t>(block_bytes(F));
}

// Sums over one tile along k of some panels of a group and some tokens.
struct TileJob {
  const std::byte* blocks;      // first block of the first panel
  std::uint32_t vector_stride;  // of a panel; kVectorBytes times the group's width
  std::uint32_t num_blocks;
  const float* scales;  // of the first panel at this tile; null: 1
  float undo;
  const float* const* x;
  std::uint32_t k;  // column of the tile's first block in x
  float* const* totals;
  std::uint32_t total0;
};

inline void add_to_total(float* total, __m256 low, __m256 high, float scale) noexcept {
  const __m256 s = _mm256_set1_ps(scale);
  _mm256_storeu_ps(total, _mm256_fmadd_ps(low, s, _mm256_loadu_ps(total)));
  _mm256_storeu_ps(total + 8, _mm256_fmadd_ps(high, s, _mm256_loadu_ps(total + 8)));
}

// ---- few tokens: decode in registers ----------------------------------------------------------------------------

// P panels of a group of W, T tokens.
template <Format F, int W, int P, int T>
[[gnu::noinline]] void direct(const TileJob& job) noexcept {
  __m256 low[P][T], high[P][T];
  UNROLL for (int p = 0; p < P; ++p) {
    UNROLL for (int t = 0; t < T; ++t) low[p][t] = high[p][t] = _mm256_setzero_ps();
  }
  const float* x[T];
  for (int t = 0; t < T; ++t) x[t] = job.x[t] + job.k;
  const std::byte* blocks = job.blocks;
  for (std::uint32_t b = 0; b < job.num_blocks; ++b, blocks += W * bytes_of_block<F>()) {
    UNROLL for (int k = 0; k < 16; ++k) {
      __m256 xk[T];
      UNROLL for (int t = 0; t < T; ++t) xk[t] = _mm256_broadcast_ss(x[t] + b * kBlockK + k);
      UNROLL for (int p = 0; p < P; ++p) {
        const Pair w = decode<F, (P * T >= 6)>(blocks + p * kVectorBytes, W * kVectorBytes, k);
        UNROLL for (int t = 0; t < T; ++t) {
          fma(low[p][t], w.low, xk[t]);
          fma(high[p][t], w.high, xk[t]);
        }
      }
    }
  }
  UNROLL for (int p = 0; p < P; ++p) {
    const float scale = (job.scales ? job.scales[p] : 1.0f) * job.undo;
    UNROLL for (int t = 0; t < T; ++t)
      add_to_total(job.totals[t] + job.total0 + p * kPanelRows, low[p][t], high[p][t], scale);
  }
}

constexpr std::uint32_t kMaxDirectTokens = 4;

// Panels of a group of W at once, such that their sums stay in registers; returns how many.
template <Format F, int W>
std::uint32_t direct_group(const TileJob& job, std::uint32_t num_panels, std::uint32_t num_tokens) noexcept {
  if (num_tokens == 1 && num_panels == W) return direct<F, W, W, 1>(job), W;
  if (num_tokens == 2 && num_panels == W) return direct<F, W, W, 2>(job), W;
  switch (num_tokens) {
    case 1: return direct<F, W, 1, 1>(job), 1;
    case 2: return direct<F, W, 1, 2>(job), 1;
    case 3: return direct<F, W, 1, 3>(job), 1;
    default: return direct<F, W, 1, 4>(job), 1;
  }
}

// Does some of the job's panels; returns how many.
template <Format F>
std::uint32_t direct_any(const TileJob& job, std::uint32_t num_panels, std::uint32_t num_tokens) noexcept {
  switch (job.vector_stride / kVectorBytes) {
    case 1: return direct_group<F, 1>(job, num_panels, num_tokens);
    case 2: return direct_group<F, 2>(job, num_panels, num_tokens);
    default: return direct_group<F, 3>(job, num_panels, num_tokens);
  }
}

// ---- many tokens: decode a panel's tile into L1, then blocks of 6 tokens x 16 rows ------------------------------

template <Format F>
void decode_block_to(const std::byte* block, std::uint32_t stride, float* out) noexcept {
  const __m256 factor = _mm256_set1_ps(exact_factor<F>());
  const auto store = [&](float* at, const Pair& pair) {
    if constexpr (has_scales(F)) {
      _mm256_storeu_ps(at, _mm256_mul_ps(pair.low, factor));
      _mm256_storeu_ps(at + 8, _mm256_mul_ps(pair.high, factor));
    } else {
      _mm256_storeu_ps(at, pair.low);
      _mm256_storeu_ps(at + 8, pair.high);
    }
  };
  UNROLL for (int k = 0; k < 16; ++k) store(out + k * 16, decode<F>(block, stride, k));
}

template <int T>
void micro(const float* w, std::uint32_t num_k, const float* const* xs, std::uint32_t k0, float* const* totals,
           std::uint32_t total0, float scale) noexcept {
  __m256 low[T], high[T];
  const float* x[T];
  UNROLL for (int t = 0; t < T; ++t) {
    low[t] = high[t] = _mm256_setzero_ps();
    x[t] = xs[t] + k0;
  }
#pragma GCC unroll 4
  for (std::uint32_t k = 0; k < num_k; ++k) {
    const __m256 w0 = _mm256_load_ps(w + k * 16), w1 = _mm256_load_ps(w + k * 16 + 8);
    UNROLL for (int t = 0; t < T; ++t) {
      const __m256 xk = _mm256_broadcast_ss(x[t] + k);
      low[t] = _mm256_fmadd_ps(w0, xk, low[t]);
      high[t] = _mm256_fmadd_ps(w1, xk, high[t]);
    }
  }
  UNROLL for (int t = 0; t < T; ++t) add_to_total(totals[t] + total0, low[t], high[t], scale);
}

template <Format F>
void tiled(const TileJob& job, std::uint32_t num_tokens, float* tile) noexcept {
  for (std::uint32_t b = 0; b < job.num_blocks; ++b)
    decode_block_to<F>(job.blocks + b * job.vector_stride * (bytes_of_block<F>() / kVectorBytes), job.vector_stride,
                       tile + b * kBlockK * kPanelRows);
  const std::uint32_t num_k = job.num_blocks * kBlockK;
  const float scale = job.scales ? job.scales[0] : 1.0f;
  std::uint32_t t = 0;
  for (; t + 6 <= num_tokens; t += 6) micro<6>(tile, num_k, job.x + t, job.k, job.totals + t, job.total0, scale);
  const float* const* x = job.x + t;
  float* const* totals = job.totals + t;
  switch (num_tokens - t) {
    case 1: return micro<1>(tile, num_k, x, job.k, totals, job.total0, scale);
    case 2: return micro<2>(tile, num_k, x, job.k, totals, job.total0, scale);
    case 3: return micro<3>(tile, num_k, x, job.k, totals, job.total0, scale);
    case 4: return micro<4>(tile, num_k, x, job.k, totals, job.total0, scale);
    case 5: return micro<5>(tile, num_k, x, job.k, totals, job.total0, scale);
    default: return;
  }
}

template <Format F>
void accumulate_format(const AccumulateArgs& args) noexcept {
  const MatrixView& m = *args.matrix;
  const bool few = args.num_tokens <= kMaxDirectTokens && (args.shifted || !has_scales(F));
  const std::uint32_t panel_end = args.panel0 + args.num_panels;
  for (std::uint32_t panel = args.panel0; panel < panel_end;) {
    // The panels of one group are done tile by tile, so that a group narrower in flight still reads one stream.
    const std::uint32_t group = m.group_of(panel), width = m.group_width(group);
    const std::uint32_t group_end = m.group_first_panel(group) + width;
    const std::uint32_t end = group_end < panel_end ? group_end : panel_end;
    for (std::uint32_t tile = args.tile0; tile < args.tile0 + args.num_tiles; ++tile) {
      const std::uint32_t first = m.tile_begin(tile), last = m.tile_begin(tile + 1);
      for (std::uint32_t p = panel; p < end;) {
        const TileJob job{m.block(p, first),
                          width * kVectorBytes,
                          last - first,
                          m.scales ? m.scale(p, tile) : nullptr,
                          shift_undo(F),
                          args.x,
                          first * kBlockK,
                          args.totals,
                          (p - args.panel0) * kPanelRows};
        if (few) {
          p += direct_any<F>(job, end - p, args.num_tokens);
        } else {
          tiled<F>(job, args.num_tokens, args.scratch);
          ++p;
        }
      }
    }
    panel = end;
  }
}

void accumulate(const AccumulateArgs& args) noexcept {
  switch (args.matrix->format) {
    case Format::kF32: return accumulate_format<Format::kF32>(args);
    case Format::kBf16: return accumulate_format<Format::kBf16>(args);
    case Format::kE4m3: return accumulate_format<Format::kE4m3>(args);
    case Format::kFp9: return accumulate_format<Format::kFp9>(args);
  }
}

void decode_block(Format format, const std::byte* block, std::uint32_t stride, float* out) noexcept {
  switch (format) {
    case Format::kF32: return decode_block_to<Format::kF32>(block, stride, out);
    case Format::kBf16: return decode_block_to<Format::kBf16>(block, stride, out);
    case Format::kE4m3: return decode_block_to<Format::kE4m3>(block, stride, out);
    case Format::kFp9: return decode_block_to<Format::kFp9>(block, stride, out);
  }
}

// ---- elementwise -----------------------------------------------------------------------------------------------

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

}  // namespace

const Kernels& avx2_kernels() noexcept {
  static constexpr Kernels kernels{"avx2", accumulate, decode_block, silu_mul, can_shift, shift};
  return kernels;
}

}  // namespace duckfleet::kernels
