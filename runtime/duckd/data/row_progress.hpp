// Which rows of a vector are final while its request is still being computed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "wire.hpp"

namespace duckfleet::duckd {

class RowProgress {
 public:
  // Before the next vector: nothing is final. Not while others mark().
  void begin(std::uint32_t num_rows) noexcept {
    num_rows_ = num_rows;
    prefix_ = 0;
    for (std::uint32_t i = 0; i < (num_rows + kRows - 1) / kRows; ++i) marks_[i].store(false, std::memory_order_relaxed);
  }

  // Rows [row0, row0 + num_rows), whole groups of kRows but for the last of all. Any thread.
  void mark(std::uint32_t row0, std::uint32_t num_rows) noexcept {
    for (std::uint32_t i = row0 / kRows; i * kRows < row0 + num_rows; ++i) marks_[i].store(true, std::memory_order_release);
  }

  // Rows [0, prefix()) are final, and whoever called mark() for them has written them. One thread.
  std::uint32_t prefix() noexcept {
    while (prefix_ < num_rows_ && marks_[prefix_ / kRows].load(std::memory_order_acquire)) {
      prefix_ = prefix_ + kRows < num_rows_ ? prefix_ + kRows : num_rows_;
    }
    return prefix_;
  }

 private:
  static constexpr std::uint32_t kRows = 16;  // a fragment's unit of f32; kernels finish whole panels of as many
  static_assert(kRows * sizeof(float) == wire::kFragmentUnitBytes);

  std::unique_ptr<std::atomic<bool>[]> marks_ = std::make_unique<std::atomic<bool>[]>(wire::kMaxHidden / kRows);
  std::uint32_t num_rows_ = 0, prefix_ = 0;
};

}  // namespace duckfleet::duckd
