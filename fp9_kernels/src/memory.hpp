// Memory for weights: page aligned, zeroed, on huge pages where the kernel grants them.
//
// Pieces smaller than a huge page share one, in the order in which they were asked for: a kernel that goes from one
// matrix to the next then reads on, without a page walk every 4 KB.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace duckfleet::kernels {

class WeightMemory {
 public:
  WeightMemory() noexcept = default;
  // Throws std::bad_alloc.
  explicit WeightMemory(std::size_t bytes);

  WeightMemory(WeightMemory&&) noexcept = default;
  WeightMemory& operator=(WeightMemory&&) noexcept = default;

  std::byte* data() const noexcept { return data_.get(); }
  std::size_t size() const noexcept { return bytes_; }
  std::span<std::byte> bytes() const noexcept { return {data_.get(), bytes_}; }

 private:
  std::shared_ptr<std::byte> data_;  // keeps the mapping that it lies in
  std::size_t bytes_ = 0;
};

}  // namespace duckfleet::kernels
