// The sum over slices in rank order (docs/formats.md, "Layer"), as far as fragments have arrived.
//
// A wavefront: slice r may be added to column c once slice r-1 has been. So the work is spread over the time in
// which replies come in, and the order of additions is the canonical one whatever the order of arrival.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "vector_slot.hpp"

namespace duckfleet::fabric {

// The vectors that make up one slice: one (the whole slice), or its parts in ascending order.
struct SliceVectors {
  std::vector<const VectorSlot*> vectors;
};

class CanonicalSum {
 public:
  // Room for `max_slices` slices; no allocation afterwards.
  explicit CanonicalSum(std::size_t max_slices) { done_.reserve(max_slices); }

  // Start the sum of `slices` (in rank order, not empty) into out[0, num_floats).
  void begin(std::span<const SliceVectors> slices, float* out, std::size_t num_floats);

  // Add whatever has become addable; true when every column is final.
  bool advance();

  [[nodiscard]] std::size_t finished_floats() const { return done_.empty() ? 0 : done_.back(); }

 private:
  std::span<const SliceVectors> slices_;
  float* out_ = nullptr;
  std::size_t num_floats_ = 0;
  std::vector<std::size_t> done_;  // by slice: columns [0, done) hold the sum up to and with this slice
};

}  // namespace duckfleet::fabric
