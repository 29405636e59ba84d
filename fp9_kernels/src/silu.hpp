// silu(g) = g / (1 + exp(-g)): the constants and the order of operations that every implementation follows.
//
//     t = min(max(-g, kExpMin), kExpMax)              (g's own NaN passes through the final division)
//     n = rint(t * kLog2e)                            as (fma(t, kLog2e, kRound)) - kRound
//     r = fma(n, -kLn2Hi, t);  r = fma(n, -kLn2Lo, r)
//     p = kP[0]; p = fma(p, r, kP[1]); ... ; p = fma(p, r, 1); p = fma(p, r, 1)
//     e = p * 2^n                                     by adding n to the exponent
//     silu = g / (1 + e)
//
// kLn2Hi/kLn2Lo is the Cody-Waite split of ln 2; kP are the Taylor coefficients 1/7! .. 1/2! rounded to f32, which on
// |r| <= ln2/2 leave a relative error under one ulp.
#pragma once

namespace duckfleet::kernels {

inline constexpr float kExpMin = -87.0f;
inline constexpr float kExpMax = 88.0f;
inline constexpr float kLog2e = 0x1.715476p+0f;
inline constexpr float kRound = 0x1.8p+23f;
inline constexpr float kLn2Hi = 0x1.62e4p-1f;
inline constexpr float kLn2Lo = 0x1.7f7d1cp-20f;
inline constexpr float kP[6] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f};

}  // namespace duckfleet::kernels
