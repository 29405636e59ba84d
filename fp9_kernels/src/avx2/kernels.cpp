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
//
// What bounds these loops is the four vector ports, two of which take every fma. So: shifts that a read at another
// address does for nothing, no multiplications (their port is one of the fma's), as few operations as there are.

inline __m256i load(const std::byte* at) noexcept { return _mm256_load_si256(reinterpret_cast<const __m256i*>(at)); }
inline __m256i loadu(const std::byte* at) noexcept { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); }

// A read and a mask in one instruction, which the compiler would share with other reads of the same place and then
// spill.
inline __m256 masked(const std::byte* at, __m256i mask) noexcept {
  __m256 out;
  __asm__("vpand %1, %2, %0" : "=x"(out) : "m"(*reinterpret_cast<const __m256i_u*>(at)), "x"(mask));
  return out;
}

// A read that is done again each time, for the same reason.
inline __m256i load_again(const std::byte* at) noexcept {
  __m256i out;
  __asm__ volatile("vmovdqa %1, %0" : "=x"(out) : "m"(*reinterpret_cast<const __m256i*>(at)));
  return out;
}

template <Format F>
inline __m256i unit_mask() noexcept {
  return _mm256_set1_epi32(static_cast<int>(F == Format::kBf16 ? 0xFFFF0000 : F == Format::kE4m3 ? 0x87F00000 : 0x8FF00000));
}

alignas(32) constexpr std::uint8_t kSwapBytes[32] = {1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14,
                                                     1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14};

// Rows 0..7 and 8..15 of 16-bit units.
inline Pair split(__m256i units, __m256i mask) noexcept {
  return {_mm256_castsi256_ps(_mm256_and_si256(_mm256_slli_epi32(units, 16), mask)),
          _mm256_castsi256_ps(_mm256_and_si256(units, mask))};
}

// The weights of column k of a block whose vectors are `stride` bytes apart, times the decode's factor.
template <Format F>
inline Pair decode(const std::byte* block, std::uint32_t stride, int k, __m256i mask) noexcept {
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
inline void fma(__m256& acc, __m256 w, __m256 x) noexcept { __asm__("vfmadd231ps %2, %1, %0" : "+x"(acc) : "x"(w), "x"(x)); }

template <Format F>
constexpr float exact_factor() noexcept {
  return F == Format::kE4m3 ? 0x1p120f : F == Format::kFp9 ? 0x1p112f : 1.0f;
}

template <Format F>
constexpr std::uint32_t bytes_of_block() noexcept {
  return static_cast<std::uint32_t>(block_bytes(F));
}

inline void add_to_total(float* total, __m256 low, __m256 high, float scale) noexcept {
  const __m256 s = _mm256_set1_ps(scale);
  _mm256_storeu_ps(total, _mm256_fmadd_ps(low, s, _mm256_loadu_ps(total)));
  _mm256_storeu_ps(total + 8, _mm256_fmadd_ps(high, s, _mm256_loadu_ps(total + 8)));
}

// ---- few tokens: decode in registers ----------------------------------------------------------------------------

// Panels to go through side by side, tile after tile.
struct Strip {
  const MatrixView* matrix;
  const std::byte* blocks;  // first block (along k) of the first panel
  const float* scales;      // of the first panel at tile 0; null: 1
  std::uint32_t tile0, num_tiles;
  const float* const* x;
  float* const* totals;
  std::uint32_t total0;
  std::uint64_t gap = 0, scale_gap = 0, total_gap = 0;  // bytes, scales and sums from a group to the one read beside it
};

// Asks for the scales that come a few tiles later: one line in thousands of bytes of codes, so no prefetcher of the
// machine's own expects it, and a wait at the end of a tile is not hidden by anything.
template <int N>
inline void prefetch_scales(const Strip& strip, std::uint32_t tile) noexcept {
  constexpr std::uint32_t kTilesAhead = 16;
  if (strip.scales == nullptr) return;
  UNROLL for (int n = 0; n < N; ++n)
    _mm_prefetch(reinterpret_cast<const char*>(strip.scales + n * strip.scale_gap + (tile + kTilesAhead) * kGroupScales),
                 _MM_HINT_T0);
}

// The sums of a tile, added to their totals. Panel p is p % P of the group p / P.
template <Format F, int P, int N, int T>
inline void finish_tile(const Strip& strip, std::uint32_t tile, const __m256 (&low)[P * N][T],
                        const __m256 (&high)[P * N][T]) noexcept {
  UNROLL for (int p = 0; p < P * N; ++p) {
    const std::uint64_t at = p / P * strip.scale_gap + std::uint64_t{tile} * kGroupScales + p % P;
    const float scale = strip.scales ? strip.scales[at] * shift_undo(F) : 1.0f;
    UNROLL for (int t = 0; t < T; ++t)
      add_to_total(strip.totals[t] + strip.total0 + p / P * strip.total_gap + p % P * kPanelRows, low[p][t], high[p][t], scale);
  }
}

// P panels of each of N groups of the width W, T tokens.
template <Format F, int W, int P, int N, int T>
[[gnu::noinline]] void direct(const Strip& strip) noexcept {
  const MatrixView& m = *strip.matrix;
  const std::byte* blocks = strip.blocks + std::uint64_t{m.tile_begin(strip.tile0)} * W * bytes_of_block<F>();
  const float* x[T];
  UNROLL for (int t = 0; t < T; ++t) x[t] = strip.x[t] + m.tile_begin(strip.tile0) * kBlockK;
  __m256i mask = unit_mask<F>();
  __asm__("" : "+x"(mask));  // in a register, not folded into each use
  for (std::uint32_t tile = strip.tile0; tile < strip.tile0 + strip.num_tiles; ++tile) {
    prefetch_scales<N>(strip, tile);
    __m256 low[P * N][T], high[P * N][T];
    UNROLL for (int p = 0; p < P * N; ++p) {
      UNROLL for (int t = 0; t < T; ++t) low[p][t] = high[p][t] = _mm256_setzero_ps();
    }
    for (std::uint32_t left = m.tile_begin(tile + 1) - m.tile_begin(tile); left > 0; --left) {
      UNROLL for (int k = 0; k < 16; ++k) {
        __m256 xk[T];
        UNROLL for (int t = 0; t < T; ++t) xk[t] = _mm256_broadcast_ss(x[t] + k);
        UNROLL for (int p = 0; p < P * N; ++p) {
          const Pair w = decode<F>(blocks + p / P * strip.gap + p % P * kVectorBytes, W * kVectorBytes, k, mask);
          UNROLL for (int t = 0; t < T; ++t) {
            fma(low[p][t], w.low, xk[t]);
            fma(high[p][t], w.high, xk[t]);
          }
        }
      }
      blocks += W * bytes_of_block<F>();
      UNROLL for (int t = 0; t < T; ++t) x[t] += kBlockK;
    }
    finish_tile<F, P, N, T>(strip, tile, low, high);
  }
}

// Two tokens, three panels: 12 sums leave four registers, which no compiler keeps to. The operands u and w are rows
// 8..15 and 0..7 of a column of one panel, x is an activation, read again whenever the other token's is needed; m is the
// mask. `at` is the panel's vector for the column, p its number, k the column.
#define READ_E4M3_EVEN(at, p, j) "vmovdqu " at "-1(%[q]), %[u]\n\tvpsraw $4, %[u], %[u]\n\t" SPLIT
#define READ_E4M3_ODD(at, p, j) "vmovdqu " at "(%[q]), %[u]\n\tvpsraw $4, %[u], %[u]\n\t" SPLIT
#define READ_FP9_EVEN(at, p, j) "vpand 96+" at "(%[q]), %[m], %[u]\n\tvpand 96+" at "-2(%[q]), %[m], %[w]\n\t"
#define READ_FP9_ODD(at, p, j)                                                                                 \
  "vmovdqa 96+" at "(%[q]), %[u]\n\tvmovdqa 32*" p "(%[q]), %[w]\n\tvpshufb %[swap], %[u], %[u]\n\tvpsllw $" j \
  ", %[w], %[w]\n\tvpxor %[w], %[u], %[u]\n\t" SPLIT
#define SPLIT "vpslld $16, %[u], %[w]\n\tvpand %[m], %[u], %[u]\n\tvpand %[m], %[w], %[w]\n\t"
#define X(t, k) "vbroadcastss 4*" k "(%[x" t "]), %[x]\n\t"
#define SUM(p, t) "vfmadd231ps %[x], %[u], %[h" p t "]\n\tvfmadd231ps %[x], %[w], %[l" p t "]\n\t"
#define COLUMN(READ, j, k)                                                   \
  READ("96*" j, "0", j) X("0", k) SUM("0", "0") X("1", k) SUM("0", "1")      \
  READ("96*" j "+32", "1", j) SUM("1", "1") X("0", k) SUM("1", "0")          \
  READ("96*" j "+64", "2", j) SUM("2", "0") X("1", k) SUM("2", "1")
#define TWO_COLUMNS(F, j, k0, k1) COLUMN(READ_##F##_EVEN, j, k0) COLUMN(READ_##F##_ODD, j, k1)
#define BLOCK(F)                                                                                     \
  TWO_COLUMNS(F, "0", "0", "1") TWO_COLUMNS(F, "1", "2", "3") TWO_COLUMNS(F, "2", "4", "5")          \
  TWO_COLUMNS(F, "3", "6", "7") TWO_COLUMNS(F, "4", "8", "9") TWO_COLUMNS(F, "5", "10", "11")        \
  TWO_COLUMNS(F, "6", "12", "13") TWO_COLUMNS(F, "7", "14", "15")
#define CLEAR(p) \
  "vpxor %[l" p "0], %[l" p "0], %[l" p "0]\n\tvpxor %[l" p "1], %[l" p "1], %[l" p "1]\n\t" \
  "vpxor %[h" p "0], %[h" p "0], %[h" p "0]\n\tvpxor %[h" p "1], %[h" p "1], %[h" p "1]\n\t"
#define SUMS_OF(p) \
  [l##p##0] "=&x"(low[p][0]), [l##p##1] "=&x"(low[p][1]), [h##p##0] "=&x"(high[p][0]), [h##p##1] "=&x"(high[p][1])
#define BLOCKS(F, STEP)                                                                                           \
  __asm__(CLEAR("0") CLEAR("1") CLEAR("2") ".p2align 5\n1:\n\t" BLOCK(F) "add $" STEP                             \
          ", %[q]\n\tadd $64, %[x0]\n\tadd $64, %[x1]\n\tdec %[n]\n\tjnz 1b\n\t"                                  \
          : SUMS_OF(0), SUMS_OF(1), SUMS_OF(2), [u] "=&x"(u), [w] "=&x"(w), [x] "=&x"(x), [q] "+r"(blocks),       \
            [x0] "+r"(x0), [x1] "+r"(x1), [n] "+r"(left)                                                          \
          : [m] "x"(mask), [swap] "m"(kSwapBytes)                                                                 \
          : "cc", "memory")

template <Format F>
[[gnu::noinline]] void direct_two(const Strip& strip) noexcept {
  static_assert(kGroupPanels == 3 && has_scales(F));
  const MatrixView& m = *strip.matrix;
  const std::uint32_t first = m.tile_begin(strip.tile0);
  const std::byte* blocks = strip.blocks + std::uint64_t{first} * kGroupPanels * bytes_of_block<F>();
  const float *x0 = strip.x[0] + first * kBlockK, *x1 = strip.x[1] + first * kBlockK;
  const __m256i mask = unit_mask<F>();
  for (std::uint32_t tile = strip.tile0; tile < strip.tile0 + strip.num_tiles; ++tile) {
    prefetch_scales<1>(strip, tile);
    __m256 low[3][2], high[3][2], u, w, x;
    std::uint64_t left = m.tile_begin(tile + 1) - m.tile_begin(tile);
    if constexpr (F == Format::kE4m3)
      BLOCKS(E4M3, "768");
    else
      BLOCKS(FP9, "864");
    finish_tile<F, 3, 1, 2>(strip, tile, low, high);
  }
}

constexpr std::uint32_t kMaxDirectTokens = 4;

// A range of panels of one group; the sums of `panel` begin at `total0`.
struct PanelRange {
  std::uint32_t panel, end, total0;
};

template <Format F>
Strip strip_of(const AccumulateArgs& args, const PanelRange& range) noexcept {
  const MatrixView& m = *args.matrix;
  return {&m, m.block(range.panel, 0), m.scales ? m.scale(range.panel, 0) : nullptr, args.tile0, args.num_tiles, args.x,
          args.totals, range.total0};
}

// Panels of a group of W.
template <Format F, int W>
void direct_group(const AccumulateArgs& args, PanelRange range) noexcept {
  if (range.end - range.panel == W) {
    if (args.num_tokens == 1) return direct<F, W, W, 1, 1>(strip_of<F>(args, range));
    if (args.num_tokens == 2) {
      if constexpr (W == 3 && has_scales(F))
        return direct_two<F>(strip_of<F>(args, range));
      else
        return direct<F, W, W, 1, 2>(strip_of<F>(args, range));
    }
  }
  for (; range.panel < range.end; ++range.panel, range.total0 += kPanelRows) {
    const Strip strip = strip_of<F>(args, range);
    switch (args.num_tokens) {
      case 1: direct<F, W, 1, 1, 1>(strip); break;
      case 2: direct<F, W, 1, 1, 2>(strip); break;
      case 3: direct<F, W, 1, 1, 3>(strip); break;
      default: direct<F, W, 1, 1, 4>(strip); break;
    }
  }
}

template <Format F>
void accumulate_direct(const AccumulateArgs& args, const PanelRange& range) noexcept {
  switch (args.matrix->group_width(args.matrix->group_of(range.panel))) {
    case 1: return direct_group<F, 1>(args, range);
    case 2: return direct_group<F, 2>(args, range);
    default: return direct_group<F, 3>(args, range);
  }
}

// One token and two full groups: side by side. The sums of `first` and `second` begin at total0 and total1.
template <Format F>
void accumulate_pair(const AccumulateArgs& args, std::uint32_t first, std::uint32_t second, std::uint32_t total0,
                     std::uint32_t total1) noexcept {
  const MatrixView& m = *args.matrix;
  const std::uint32_t panel = m.group_first_panel(first);
  Strip strip = strip_of<F>(args, {panel, panel + kGroupPanels, total0});
  strip.gap = static_cast<std::uint64_t>(m.group_blocks(second) - m.group_blocks(first));
  strip.scale_gap = std::uint64_t{second - first} * m.num_tiles * kGroupScales;
  strip.total_gap = total1 - total0;
  direct<F, kGroupPanels, kGroupPanels, 2, 1>(strip);
}

// ---- many tokens: decode a panel's tile into L1, then blocks of 6 tokens x 16 rows ------------------------------

// Exact: the weights; else times the decode's factor.
template <Format F, bool Exact>
void decode_block_to(const std::byte* block, std::uint32_t stride, float* out) noexcept {
  const __m256 factor = _mm256_set1_ps(exact_factor<F>());
  const __m256i mask = unit_mask<F>();
  UNROLL for (int k = 0; k < 16; ++k) {
    Pair w;
    if constexpr (F == Format::kE4m3) {
      // Here nothing waits for the multiplications' port: 16 times the lower byte is one read and one operation less.
      const __m256i codes = load(block + k / 2 * stride);
      w = split(k % 2 == 0 ? _mm256_maddubs_epi16(_mm256_set1_epi16(0x0010), codes) : _mm256_srai_epi16(codes, 4), mask);
    } else {
      w = decode<F>(block, stride, k, mask);
    }
    if constexpr (has_scales(F) && Exact) w = {_mm256_mul_ps(w.low, factor), _mm256_mul_ps(w.high, factor)};
    _mm256_storeu_ps(out + k * 16, w.low);
    _mm256_storeu_ps(out + k * 16 + 8, w.high);
  }
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

// One panel's tile along k and any number of tokens.
struct TileJob {
  const std::byte* blocks;  // the panel's first block of the tile
  std::uint32_t vector_stride;
  std::uint32_t num_blocks;
  std::uint32_t prefetch_bytes;
  float scale;
  const float* const* x;
  std::uint32_t k;  // column of the tile's first block in x
  float* const* totals;
  std::uint32_t total0;
};

template <Format F, bool Exact>
void tiled(const TileJob& job, std::uint32_t num_tokens, float* tile) noexcept {
  const std::uint32_t block_step = job.vector_stride * (bytes_of_block<F>() / kVectorBytes);
  for (std::uint32_t b = 0; b < job.num_blocks; ++b)
    decode_block_to<F, Exact>(job.blocks + b * block_step, job.vector_stride, tile + b * kBlockK * kPanelRows);
  // The group's next tile is read while the sums are made.
  const char* next = reinterpret_cast<const char*>(job.blocks) + std::uint64_t{job.num_blocks} * block_step;
  for (std::uint32_t at = 0; at < job.prefetch_bytes; at += 64) _mm_prefetch(next + at, _MM_HINT_T1);
  const std::uint32_t num_k = job.num_blocks * kBlockK;
  std::uint32_t t = 0;
  for (; t + 6 <= num_tokens; t += 6) micro<6>(tile, num_k, job.x + t, job.k, job.totals + t, job.total0, job.scale);
  const float* const* x = job.x + t;
  float* const* totals = job.totals + t;
  switch (num_tokens - t) {
    case 1: return micro<1>(tile, num_k, x, job.k, totals, job.total0, job.scale);
    case 2: return micro<2>(tile, num_k, x, job.k, totals, job.total0, job.scale);
    case 3: return micro<3>(tile, num_k, x, job.k, totals, job.total0, job.scale);
    case 4: return micro<4>(tile, num_k, x, job.k, totals, job.total0, job.scale);
    case 5: return micro<5>(tile, num_k, x, job.k, totals, job.total0, job.scale);
    default: return;
  }
}

template <Format F>
void accumulate_tiled(const AccumulateArgs& args, const PanelRange& range) noexcept {
  const MatrixView& m = *args.matrix;
  const std::uint32_t stride = m.vector_stride(range.panel);
  // Tile by tile, so that the group is read as the one stream that it is.
  for (std::uint32_t tile = args.tile0; tile < args.tile0 + args.num_tiles; ++tile) {
    const std::uint32_t first = m.tile_begin(tile), num_blocks = m.tile_begin(tile + 1) - first;
    for (std::uint32_t panel = range.panel; panel < range.end; ++panel) {
      const float scale = m.scales ? *m.scale(panel, tile) : 1.0f;
      const TileJob job{m.block(panel, first),
                        stride,
                        num_blocks,
                        panel == range.panel ? num_blocks * (stride / kVectorBytes) * bytes_of_block<F>() : 0,
                        args.shifted ? scale * shift_undo(F) : scale,
                        args.x,
                        first * kBlockK,
                        args.totals,
                        range.total0 + (panel - range.panel) * kPanelRows};
      if (args.shifted)
        tiled<F, false>(job, args.num_tokens, args.scratch);
      else
        tiled<F, true>(job, args.num_tokens, args.scratch);
    }
  }
}

template <Format F>
bool is_few(const AccumulateArgs& args) noexcept {
  return args.num_tokens <= kMaxDirectTokens && (args.shifted || !has_scales(F));
}

// Pairs of groups (first + i, second + i), where all are full ones, for one token; whether it is done.
template <Format F>
bool accumulate_pairs(const AccumulateArgs& args, std::uint32_t panel, std::uint32_t second_panel, std::uint32_t num_panels,
                      std::uint32_t total0, std::uint32_t total1) noexcept {
  const MatrixView& m = *args.matrix;
  const std::uint32_t first = panel / kGroupPanels, second = second_panel / kGroupPanels, count = num_panels / kGroupPanels;
  if (!is_few<F>(args) || args.num_tokens != 1 || panel % kGroupPanels != 0 || second_panel % kGroupPanels != 0 ||
      num_panels % kGroupPanels != 0 || count == 0 || first + count > second || second + count > m.full_groups())
    return false;
  for (std::uint32_t i = 0; i < count; ++i)
    accumulate_pair<F>(args, first + i, second + i, total0 + i * kGroupPanels * kPanelRows,
                       total1 + i * kGroupPanels * kPanelRows);
  return true;
}

template <Format F>
void accumulate_range(const AccumulateArgs& args, std::uint32_t panel, std::uint32_t end, std::uint32_t total0) noexcept {
  const MatrixView& m = *args.matrix;
  const std::uint32_t full_panels = m.full_groups() * kGroupPanels, full_end = end < full_panels ? end : full_panels;
  if (panel < full_end) {
    // Two streams here too: the first and the second half of the range.
    const std::uint32_t half = (full_end - panel) / kGroupPanels / 2 * kGroupPanels;
    if (accumulate_pairs<F>(args, panel, panel + half, half, total0, total0 + half * kPanelRows)) {
      panel += 2 * half;
      total0 += 2 * half * kPanelRows;
    }
  }
  while (panel < end) {
    const std::uint32_t group = m.group_of(panel), group_end = m.group_first_panel(group) + m.group_width(group);
    const PanelRange range{panel, group_end < end ? group_end : end, total0};
    if (is_few<F>(args))
      accumulate_direct<F>(args, range);
    else
      accumulate_tiled<F>(args, range);
    total0 += (range.end - panel) * kPanelRows;
    panel = range.end;
  }
}

template <Format F>
void accumulate_format(const AccumulateArgs& args) noexcept {
  const std::uint32_t second0 = args.panel0 + args.panel_gap, second_total0 = args.num_panels * kPanelRows;
  if (args.panel_gap != 0 && accumulate_pairs<F>(args, args.panel0, second0, args.num_panels, 0, second_total0)) return;
  accumulate_range<F>(args, args.panel0, args.panel0 + args.num_panels, 0);
  if (args.panel_gap != 0) accumulate_range<F>(args, second0, second0 + args.num_panels, second_total0);
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
    case Format::kF32: return decode_block_to<Format::kF32, true>(block, stride, out);
    case Format::kBf16: return decode_block_to<Format::kBf16, true>(block, stride, out);
    case Format::kE4m3: return decode_block_to<Format::kE4m3, true>(block, stride, out);
    case Format::kFp9: return decode_block_to<Format::kFp9, true>(block, stride, out);
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
