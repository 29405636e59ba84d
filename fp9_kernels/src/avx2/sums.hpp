// What the files of the AVX2 implementation offer one another. All of it in the canonical order of docs/formats.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../kernels.hpp"

namespace duckfleet::kernels::avx2 {

// A range of panels of one group; the sums of `panel` begin at `total0`.
struct PanelRange {
  std::uint32_t panel, end, total0;
};

// Up to so many tokens, kernels decode in registers.
inline constexpr std::uint32_t kMaxFewTokens = 4;

// Up to kMaxFewTokens tokens, in a shifted call where the format has scales.
void accumulate_few(const AccumulateArgs& args, const PanelRange& range) noexcept;

// The same for one token and two full groups, side by side. The sums of `first` and `second` begin at total0 and total1.
void accumulate_pair(const AccumulateArgs& args, std::uint32_t first, std::uint32_t second, std::uint32_t total0,
                     std::uint32_t total1) noexcept;

// Any number of tokens.
void accumulate_many(const AccumulateArgs& args, const PanelRange& range) noexcept;

// The entries of the table of kernels.hpp.
void decode_block(Format format, const std::byte* block, std::uint32_t stride, float* out) noexcept;
void silu_mul(const float* gate, const float* up, float weight, float* h, std::uint32_t n) noexcept;
bool can_shift(const float* x, std::uint32_t n) noexcept;
void shift(const float* x, float* out, std::uint32_t n) noexcept;

}  // namespace duckfleet::kernels::avx2
