// The scalar implementation: the definition of every sum, written for reading. Runs on any x86-64.
#include <bit>
#include <cmath>
#include <cstring>

#include "../implementations.hpp"
#include "../kernels.hpp"
#include "../silu.hpp"

namespace duckfleet::kernels {
namespace {

struct CodeTables {
  float e4m3[256];
  float fp9[512];
  CodeTables() noexcept {
    for (std::uint32_t code = 0; code < 256; ++code) e4m3[code] = decode_e4m3(code);
    for (std::uint32_t code = 0; code < 512; ++code) fp9[code] = decode_fp9(code);
  }
};
const CodeTables tables;

void decode_block(Format format, const std::byte* block, std::uint32_t stride, float* out) noexcept {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(block);
  const auto unit_at = [](const std::uint8_t* vector, std::uint32_t unit) {
    std::uint16_t bits;
    std::memcpy(&bits, vector + unit * 2, 2);
    return static_cast<std::uint32_t>(bits);
  };
  for (std::uint32_t k = 0; k < kBlockK; ++k) {
    for (std::uint32_t unit = 0; unit < kPanelRows; ++unit) {
      const std::uint32_t row = unit_row(unit);
      float& value = out[k * kPanelRows + row];
      switch (format) {
        case Format::kF32:
          std::memcpy(&value, bytes + (2 * k + row / 8) * stride + row % 8 * 4, 4);
          break;
        case Format::kBf16:
          value = std::bit_cast<float>(unit_at(bytes + k * stride, unit) << 16);
          break;
        case Format::kE4m3:
          value = tables.e4m3[bytes[k / 2 * stride + unit * 2 + k % 2]];
          break;
        case Format::kFp9: {
          std::uint32_t bits = unit_at(bytes + (1 + k / 2) * stride, unit);
          if (k % 2 == 1) bits = ((bits << 8 | bits >> 8) & 0xFFFF) ^ unit_at(bytes, unit) << k / 2;
          value = tables.fp9[((bits >> 15) & 1) << 8 | ((bits >> 4) & 0xFF)];
          break;
        }
      }
    }
  }
}

void accumulate(const AccumulateArgs& args) noexcept {
  const MatrixView& m = *args.matrix;
  const float unshift = args.shifted ? std::bit_cast<float>(static_cast<std::uint32_t>(127 - kShiftExponent) << 23) : 1.0f;
  for (std::uint32_t p = 0; p < args.num_panels * (args.panel_gap == 0 ? 1 : 2); ++p) {
    const std::uint32_t panel = args.panel0 + (p < args.num_panels ? p : p - args.num_panels + args.panel_gap);
    for (std::uint32_t tile = args.tile0; tile < args.tile0 + args.num_tiles; ++tile) {
      const std::uint32_t first = m.tile_begin(tile), last = m.tile_begin(tile + 1);
      const float scale = m.scales ? *m.scale(panel, tile) : 1.0f;
      for (std::uint32_t block = first; block < last; ++block)
        decode_block(m.format, m.block(panel, block), m.vector_stride(panel), args.scratch + (block - first) * kBlockK * kPanelRows);
      for (std::uint32_t t = 0; t < args.num_tokens; ++t) {
        const float* x = args.x[t] + first * kBlockK;
        float acc[kPanelRows] = {};
        for (std::uint32_t k = 0; k < (last - first) * kBlockK; ++k)
          for (std::uint32_t r = 0; r < kPanelRows; ++r)
            acc[r] = std::fma(args.scratch[k * kPanelRows + r], x[k] * unshift, acc[r]);
        float* total = args.totals[t] + p * kPanelRows;
        for (std::uint32_t r = 0; r < kPanelRows; ++r) total[r] = std::fma(acc[r], scale, total[r]);
      }
    }
  }
}

float exp_clamped(float t) noexcept {
  t = t > kExpMin ? t : kExpMin;
  t = t < kExpMax ? t : kExpMax;
  const float n = std::fma(t, kLog2e, kRound) - kRound;
  float r = std::fma(n, -kLn2Hi, t);
  r = std::fma(n, -kLn2Lo, r);
  float p = kP[0];
  for (int i = 1; i < 6; ++i) p = std::fma(p, r, kP[i]);
  p = std::fma(p, r, 1.0f);
  p = std::fma(p, r, 1.0f);
  return p * std::bit_cast<float>(static_cast<std::uint32_t>(static_cast<int>(n) + 127) << 23);
}

void silu_mul(const float* gate, const float* up, float weight, float* h, std::uint32_t n) noexcept {
  for (std::uint32_t j = 0; j < n; ++j) h[j] = gate[j] / (1.0f + exp_clamped(-gate[j])) * up[j] * weight;
}

bool can_shift(const float* x, std::uint32_t n) noexcept {
  for (std::uint32_t i = 0; i < n; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x[i]) & 0x7FFFFFFF;
    if (bits != 0 && (bits < kShiftMinBits || bits >= kShiftMaxBits)) return false;
  }
  return true;
}

void shift(const float* x, float* out, std::uint32_t n) noexcept {
  const float factor = std::bit_cast<float>(static_cast<std::uint32_t>(127 + kShiftExponent) << 23);
  for (std::uint32_t i = 0; i < n; ++i) out[i] = x[i] * factor;
}

}  // namespace

const Kernels& scalar_kernels() noexcept {
  static constexpr Kernels kernels{"scalar", accumulate, decode_block, silu_mul, can_shift, shift, false};
  return kernels;
}

}  // namespace duckfleet::kernels
