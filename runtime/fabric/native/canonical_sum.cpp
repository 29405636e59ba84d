#include "canonical_sum.hpp"

#include <algorithm>
#include <cstring>

namespace duckfleet::fabric {
namespace {

// One pass covers at most this much, so that a column range stays in the first-level cache over all slices.
constexpr std::size_t kBlockFloats = 2048;

void add(float* __restrict out, const float* __restrict v, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) out[i] += v[i];
}

// out[c0, c1) (+)= ((p0 + p1) + p2) + ...
void add_slice(const SliceVectors& slice, bool is_first, float* out, std::size_t c0, std::size_t c1) {
  const auto& parts = slice.vectors;
  const std::size_t n = c1 - c0;
  if (parts.size() == 1) {
    if (is_first) {
      std::memcpy(out + c0, parts[0]->data() + c0, n * sizeof(float));
    } else {
      add(out + c0, parts[0]->data() + c0, n);
    }
    return;
  }
  alignas(64) float sum[kBlockFloats];
  std::memcpy(sum, parts[0]->data() + c0, n * sizeof(float));
  for (std::size_t p = 1; p < parts.size(); ++p) add(sum, parts[p]->data() + c0, n);
  if (is_first) {
    std::memcpy(out + c0, sum, n * sizeof(float));
  } else {
    add(out + c0, sum, n);
  }
}

std::size_t ready(const SliceVectors& slice) {
  std::size_t columns = slice.vectors[0]->ready_floats();
  for (std::size_t p = 1; p < slice.vectors.size(); ++p) {
    columns = std::min(columns, slice.vectors[p]->ready_floats());
  }
  return columns;
}

}  // namespace

void CanonicalSum::begin(std::span<const SliceVectors> slices, float* out, std::size_t num_floats) {
  slices_ = slices;
  out_ = out;
  num_floats_ = num_floats;
  done_.assign(slices.size(), 0);
}

bool CanonicalSum::advance() {
  for (bool moved = true; moved;) {
    moved = false;
    std::size_t above = num_floats_;  // columns in which the slice before is already in
    for (std::size_t r = 0; r < slices_.size(); ++r) {
      if (done_[r] < above) {
        const std::size_t until = std::min({above, ready(slices_[r]), done_[r] + kBlockFloats});
        if (until > done_[r]) {
          add_slice(slices_[r], r == 0, out_, done_[r], until);
          done_[r] = until;
          moved = true;
        }
      }
      above = done_[r];
    }
  }
  return finished_floats() == num_floats_;
}

}  // namespace duckfleet::fabric
