// Plain C++: eight lanes as a loop, with the same bits.
#include <cmath>
#include <cstring>

#include "../host_kernels.hpp"

#define HOST_ISA scalar

namespace duckfleet::host::scalar {

struct Vec {
  float v[8];
};
template <typename F>
inline Vec each(F&& lane) noexcept {
  Vec r;
  for (int i = 0; i < 8; ++i) r.v[i] = lane(i);
  return r;
}
inline Vec load(const float* p) noexcept { return each([&](int i) { return p[i]; }); }
inline void store(float* p, Vec a) noexcept { std::memcpy(p, a.v, sizeof a.v); }
inline Vec all(float x) noexcept { return each([&](int) { return x; }); }
inline Vec operator+(Vec a, Vec b) noexcept { return each([&](int i) { return a.v[i] + b.v[i]; }); }
inline Vec operator-(Vec a, Vec b) noexcept { return each([&](int i) { return a.v[i] - b.v[i]; }); }
inline Vec operator*(Vec a, Vec b) noexcept { return each([&](int i) { return a.v[i] * b.v[i]; }); }
inline Vec fma(Vec a, Vec b, Vec c) noexcept { return each([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); }); }
// The second where either is NaN, as AVX's maximum.
inline Vec larger(Vec a, Vec b) noexcept { return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
inline Vec times_power_of_two(Vec p, Vec n) noexcept {
  return each([&](int i) {
    const std::uint32_t bits = (static_cast<std::uint32_t>(static_cast<std::int32_t>(n.v[i])) + 127) << 23;
    float factor;
    std::memcpy(&factor, &bits, sizeof factor);
    return p.v[i] * factor;
  });
}

}  // namespace duckfleet::host::scalar

#include "../kernels_body.hpp"

namespace duckfleet::host {

const HostKernels& scalar_host_kernels() noexcept {
  static constexpr HostKernels kernels{"scalar", scalar::rms_norm, scalar::add, scalar::rotate, scalar::attend};
  return kernels;
}

}  // namespace duckfleet::host
