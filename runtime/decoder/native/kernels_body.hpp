// The algorithms, over the eight lanes (Vec) that the including file has defined in its own namespace HOST_ISA.
#include <cmath>

#include "silu.hpp"

#ifndef HOST_ISA
#error "included by an implementation, after its Vec"
#endif

// Accumulators must stay in registers: loops over them are unrolled, but not under sanitizers, where it takes minutes.
#ifdef __SANITIZE_ADDRESS__
#define HOST_UNROLL
#else
#define HOST_UNROLL _Pragma("GCC unroll 8")
#endif

namespace duckfleet::host::HOST_ISA {

// Lanes of a and b in a fixed tree.
inline float sum_of(Vec a, Vec b) noexcept {
  float lanes[8];
  store(lanes, a + b);
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// e^x for x <= 0 (or NaN), by the polynomial of the FFN's SiLU; e^-87 below -87.
inline Vec exp_of(Vec x) noexcept {
  using namespace duckfleet::kernels;
  const Vec t = larger(all(kExpMin), x);  // x where it is NaN
  const Vec n = fma(t, all(kLog2e), all(kRound)) - all(kRound);
  Vec r = fma(n, all(-kLn2Hi), t);
  r = fma(n, all(-kLn2Lo), r);
  Vec p = all(kP[0]);
  HOST_UNROLL for (int i = 1; i < 6; ++i) p = fma(p, r, all(kP[i]));
  p = fma(p, r, all(1.0f));
  p = fma(p, r, all(1.0f));
  return times_power_of_two(p, n);
}

void rms_norm(const float* x, const float* weight, float eps, std::uint32_t n, float* out) noexcept {
  Vec low = all(0.0f), high = all(0.0f);
  std::uint32_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const Vec a = load(x + i), b = load(x + i + 8);
    low = fma(a, a, low);
    high = fma(b, b, high);
  }
  float squares = sum_of(low, high);
  for (; i < n; ++i) squares = std::fma(x[i], x[i], squares);
  const float factor = 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
  for (i = 0; i + 8 <= n; i += 8) store(out + i, load(x + i) * all(factor) * load(weight + i));
  for (; i < n; ++i) out[i] = x[i] * factor * weight[i];
}

void add(float* x, const float* y, std::uint32_t n) noexcept {
  std::uint32_t i = 0;
  for (; i + 8 <= n; i += 8) store(x + i, load(x + i) + load(y + i));
  for (; i < n; ++i) x[i] += y[i];
}

void rotate(float* x, const float* cos, const float* sin, std::uint32_t half) noexcept {
  float* y = x + half;
  std::uint32_t i = 0;
  for (; i + 8 <= half; i += 8) {
    const Vec a = load(x + i), b = load(y + i), c = load(cos + i), s = load(sin + i);
    store(x + i, a * c - b * s);
    store(y + i, b * c + a * s);
  }
  for (; i < half; ++i) {
    const float a = x[i], b = y[i];
    x[i] = a * cos[i] - b * sin[i];
    y[i] = b * cos[i] + a * sin[i];
  }
}

// scores[r][position] for R rows over num_panels panels of keys: one chain of fma along head_dim a score.
template <int R>
void score(const AttendArgs& args, std::uint32_t num_panels, std::uint32_t stride) noexcept {
  const Vec scale = all(args.scale);
  const float* q[R];
  for (int r = 0; r < R; ++r) q[r] = args.queries[r];
  const float* keys = args.keys;
  for (std::uint32_t panel = 0; panel < num_panels; ++panel, keys += args.head_dim * kLanes) {
    Vec low[R], high[R];
    HOST_UNROLL for (int r = 0; r < R; ++r) low[r] = high[r] = all(0.0f);
    for (std::uint32_t d = 0; d < args.head_dim; ++d) {
      const Vec a = load(keys + d * kLanes), b = load(keys + d * kLanes + 8);
      HOST_UNROLL for (int r = 0; r < R; ++r) {
        const Vec x = all(q[r][d]);
        low[r] = fma(a, x, low[r]);
        high[r] = fma(b, x, high[r]);
      }
    }
    HOST_UNROLL for (int r = 0; r < R; ++r) {
      float* to = args.scores + r * stride + panel * kLanes;
      store(to, low[r] * scale);
      store(to + 8, high[r] * scale);
    }
  }
}

// Scores of a row become weights that are not yet divided by their sum, zero from `seen` to `width`; returns the sum.
inline float exponentiate(float* scores, std::uint32_t seen, std::uint32_t width) noexcept {
  for (std::uint32_t i = seen; i < padded(seen); ++i) scores[i] = -__builtin_inff();
  Vec most = load(scores);
  for (std::uint32_t i = 8; i < padded(seen); i += 8) most = larger(most, load(scores + i));
  float lanes[8];
  store(lanes, most);
  float largest = lanes[0];
  for (int i = 1; i < 8; ++i) largest = lanes[i] > largest ? lanes[i] : largest;
  Vec low = all(0.0f), high = all(0.0f);
  const Vec m = all(largest);
  std::uint32_t i = 0;
  for (; i + kLanes <= seen; i += kLanes) {
    const Vec a = exp_of(load(scores + i) - m), b = exp_of(load(scores + i + 8) - m);
    store(scores + i, a);
    store(scores + i + 8, b);
    low = low + a;
    high = high + b;
  }
  if (i < seen) {
    store(scores + i, exp_of(load(scores + i) - m));
    store(scores + i + 8, exp_of(load(scores + i + 8) - m));
    for (std::uint32_t j = seen; j < padded(seen); ++j) scores[j] = 0.0f;
    low = low + load(scores + i);
    high = high + load(scores + i + 8);
  }
  for (std::uint32_t j = padded(seen); j < width; ++j) scores[j] = 0.0f;
  return sum_of(low, high);
}

// out[r] = weights[r] . values / sums[r]: one chain of fma along the positions an output.
template <int R>
void mix(const AttendArgs& args, std::uint32_t num_positions, std::uint32_t stride, const float* sums) noexcept {
  const std::uint32_t width = padded(args.head_dim);
  for (std::uint32_t d = 0; d < width; d += kLanes) {
    Vec low[R], high[R];
    HOST_UNROLL for (int r = 0; r < R; ++r) low[r] = high[r] = all(0.0f);
    const float* values = args.values + d;
    const float* weights = args.scores;
    for (std::uint32_t position = 0; position < num_positions; ++position, values += width, ++weights) {
      const Vec a = load(values), b = load(values + 8);
      HOST_UNROLL for (int r = 0; r < R; ++r) {
        const Vec w = all(weights[r * stride]);
        low[r] = fma(a, w, low[r]);
        high[r] = fma(b, w, high[r]);
      }
    }
    HOST_UNROLL for (int r = 0; r < R; ++r) {
      const Vec factor = all(1.0f / sums[r]);
      if (d + kLanes <= args.head_dim) {
        store(args.out[r] + d, low[r] * factor);
        store(args.out[r] + d + 8, high[r] * factor);
      } else {
        float last[kLanes];
        store(last, low[r] * factor);
        store(last + 8, high[r] * factor);
        for (std::uint32_t i = d; i < args.head_dim; ++i) args.out[r][i] = last[i - d];
      }
    }
  }
}

template <int R>
void attend_rows(const AttendArgs& args) noexcept {
  const std::uint32_t most = args.seen[R - 1], stride = padded(most);
  score<R>(args, stride / kLanes, stride);
  float sums[R];
  for (int r = 0; r < R; ++r) sums[r] = exponentiate(args.scores + r * stride, args.seen[r], stride);
  mix<R>(args, most, stride, sums);
}

void attend(const AttendArgs& args) noexcept {
  switch (args.num_rows) {
    case 1: return attend_rows<1>(args);
    case 2: return attend_rows<2>(args);
    case 3: return attend_rows<3>(args);
    case 4: return attend_rows<4>(args);
    case 5: return attend_rows<5>(args);
    case 6: return attend_rows<6>(args);
    default: return;
  }
}

}  // namespace duckfleet::host::HOST_ISA
