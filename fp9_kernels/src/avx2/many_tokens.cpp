// Sums of many tokens: a panel's tile is decoded into the first cache, then taken in blocks of 6 tokens x 16 rows.
#include "decode.hpp"
#include "sums.hpp"

namespace duckfleet::kernels::avx2 {
namespace {

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
void many_of(const AccumulateArgs& args, const PanelRange& range) noexcept {
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

}  // namespace

void accumulate_many(const AccumulateArgs& args, const PanelRange& range) noexcept {
  switch (args.matrix->format) {
    case Format::kF32: return many_of<Format::kF32>(args, range);
    case Format::kBf16: return many_of<Format::kBf16>(args, range);
    case Format::kE4m3: return many_of<Format::kE4m3>(args, range);
    case Format::kFp9: return many_of<Format::kFp9>(args, range);
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

}  // namespace duckfleet::kernels::avx2
