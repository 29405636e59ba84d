// Sums of few tokens: weights are decoded in registers, as they are read.
#include "decode.hpp"
#include "sums.hpp"

namespace duckfleet::kernels::avx2 {
namespace {

// Panels to go through side by side, tile after tile.
struct Strip {
  const MatrixView* matrix;
  const std::byte* blocks;  // first block (along k) of the first panel
  const float* scales;      // of the first panel at tile 0; null: 1
  std::uint32_t tile0, num_tiles;
  const float* const* x;
  float* const* totals;
  std::uint32_t total0;
  std::uint32_t prefetch_bytes;
  std::uint64_t gap = 0, scale_gap = 0, total_gap = 0;  // bytes, scales and sums from a group to the one read beside it
};

// Asks for column k's share of the lines of a block of W panels; `ahead` is where that block begins.
template <Format F, int W>
[[gnu::always_inline]] inline void prefetch_share(const std::byte* ahead, int k) noexcept {
  constexpr int kLine = 64, kLines = (W * static_cast<int>(bytes_of_block<F>()) + kLine - 1) / kLine;
  constexpr int kColumns = static_cast<int>(kBlockK);
  UNROLL for (int line = k * kLines / kColumns; line < (k + 1) * kLines / kColumns; ++line)
    _mm_prefetch(reinterpret_cast<const char*>(ahead + line * kLine), _MM_HINT_T0);
}

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
      const std::byte* ahead = blocks + strip.prefetch_bytes;
      UNROLL for (int k = 0; k < 16; ++k) {
        __m256 xk[T];
        UNROLL for (int t = 0; t < T; ++t) xk[t] = _mm256_broadcast_ss(x[t] + k);
        UNROLL for (int n = 0; n < N; ++n) prefetch_share<F, W>(ahead + n * strip.gap, k);
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
#define PREFETCH(line) "prefetcht0 64*" line "(%[q],%[ahead])\n\t"
#define TWO_COLUMNS(F, j, k0, k1) COLUMN(READ_##F##_EVEN, j, k0) COLUMN(READ_##F##_ODD, j, k1)
#define BLOCK(F)                                                                                             \
  PREFETCH("0") TWO_COLUMNS(F, "0", "0", "1") PREFETCH("1") PREFETCH("2") TWO_COLUMNS(F, "1", "2", "3")      \
  PREFETCH("3") TWO_COLUMNS(F, "2", "4", "5") PREFETCH("4") PREFETCH("5") TWO_COLUMNS(F, "3", "6", "7")      \
  PREFETCH("6") TWO_COLUMNS(F, "4", "8", "9") PREFETCH("7") PREFETCH("8") TWO_COLUMNS(F, "5", "10", "11")    \
  PREFETCH("9") TWO_COLUMNS(F, "6", "12", "13") PREFETCH("10") PREFETCH("11") TWO_COLUMNS(F, "7", "14", "15") \
  PREFETCH_SIGNS_##F
#define PREFETCH_SIGNS_E4M3
#define PREFETCH_SIGNS_FP9 PREFETCH("12") PREFETCH("13")
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
          : [m] "x"(mask), [swap] "m"(kSwapBytes), [ahead] "r"(ahead)                             \
          : "cc", "memory")

template <Format F>
[[gnu::noinline]] void direct_two(const Strip& strip) noexcept {
  static_assert(kGroupPanels == 3 && has_scales(F));
  const MatrixView& m = *strip.matrix;
  const std::uint32_t first = m.tile_begin(strip.tile0);
  const std::byte* blocks = strip.blocks + std::uint64_t{first} * kGroupPanels * bytes_of_block<F>();
  const float *x0 = strip.x[0] + first * kBlockK, *x1 = strip.x[1] + first * kBlockK;
  const __m256i mask = unit_mask<F>();
  const std::uint64_t ahead = strip.prefetch_bytes;
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

template <Format F>
Strip strip_of(const AccumulateArgs& args, const PanelRange& range) noexcept {
  const MatrixView& m = *args.matrix;
  return {&m, m.block(range.panel, 0), m.scales ? m.scale(range.panel, 0) : nullptr, args.tile0, args.num_tiles, args.x,
          args.totals, range.total0, args.prefetch_bytes};
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
void few_of(const AccumulateArgs& args, const PanelRange& range) noexcept {
  switch (args.matrix->group_width(args.matrix->group_of(range.panel))) {
    case 1: return direct_group<F, 1>(args, range);
    case 2: return direct_group<F, 2>(args, range);
    default: return direct_group<F, 3>(args, range);
  }
}

template <Format F>
void pair_of(const AccumulateArgs& args, std::uint32_t first, std::uint32_t second, std::uint32_t total0,
                     std::uint32_t total1) noexcept {
  const MatrixView& m = *args.matrix;
  const std::uint32_t panel = m.group_first_panel(first);
  Strip strip = strip_of<F>(args, {panel, panel + kGroupPanels, total0});
  strip.gap = static_cast<std::uint64_t>(m.group_blocks(second) - m.group_blocks(first));
  strip.scale_gap = std::uint64_t{second - first} * m.num_tiles * kGroupScales;
  strip.total_gap = total1 - total0;
  direct<F, kGroupPanels, kGroupPanels, 2, 1>(strip);
}

}  // namespace

void accumulate_few(const AccumulateArgs& args, const PanelRange& range) noexcept {
  switch (args.matrix->format) {
    case Format::kF32: return few_of<Format::kF32>(args, range);
    case Format::kBf16: return few_of<Format::kBf16>(args, range);
    case Format::kE4m3: return few_of<Format::kE4m3>(args, range);
    case Format::kFp9: return few_of<Format::kFp9>(args, range);
  }
}

void accumulate_pair(const AccumulateArgs& args, std::uint32_t first, std::uint32_t second, std::uint32_t total0,
                     std::uint32_t total1) noexcept {
  switch (args.matrix->format) {
    case Format::kF32: return pair_of<Format::kF32>(args, first, second, total0, total1);
    case Format::kBf16: return pair_of<Format::kBf16>(args, first, second, total0, total1);
    case Format::kE4m3: return pair_of<Format::kE4m3>(args, first, second, total0, total1);
    case Format::kFp9: return pair_of<Format::kFp9>(args, first, second, total0, total1);
  }
}

}  // namespace duckfleet::kernels::avx2
