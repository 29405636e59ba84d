// A fixed place in memory where one reply vector comes together, fragment by fragment.
//
// One thread takes fragments (the domain's), another may read what is there: `ready_floats()` is published
// with release order after the bytes it covers, and bytes once published are never written again until the
// slot is armed for the next request, which happens only after the reader has let go of the last one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "received_ranges.hpp"

namespace duckfleet::fabric {

class VectorSlot {
 public:
  enum class Take { kProgress, kComplete, kDuplicate, kMisfit, kTooScattered };

  // Room for vectors of up to `capacity_floats` (64-byte aligned).
  explicit VectorSlot(std::size_t capacity_floats);

  // Empty the slot; the next vector has `num_floats`, at most the capacity.
  void arm(std::size_t num_floats);

  // One fragment: `payload` belongs at byte `offset`. Everything about it may be wrong; kMisfit says so.
  Take take(std::uint32_t offset, std::span<const std::byte> payload);

  [[nodiscard]] bool complete() const { return ranges_.complete(); }
  [[nodiscard]] std::uint32_t message_bytes() const { return ranges_.message_bytes(); }
  [[nodiscard]] std::uint32_t received_bytes() const { return ranges_.received_bytes(); }
  std::size_t missing(std::span<wire::Range> out) const { return ranges_.missing(out); }

  // For the reader: floats from the start that are final.
  [[nodiscard]] std::size_t ready_floats() const { return ready_floats_.load(std::memory_order_acquire); }
  [[nodiscard]] const float* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(float* p) const;
  };
  std::unique_ptr<float[], Free> data_;
  std::size_t capacity_floats_;
  ReceivedRanges ranges_;
  alignas(64) std::atomic<std::size_t> ready_floats_{0};
};

}  // namespace duckfleet::fabric
