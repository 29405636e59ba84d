// The median of the last few dozen samples, for a limit that follows what is usual.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace duckfleet::fabric {

class RecentMedian {
 public:
  static constexpr std::size_t kWindow = 63;
  static constexpr std::size_t kEnough = 16;  // samples before which there is no saying what is usual

  void add(std::uint64_t sample) {
    samples_[next_] = sample;
    next_ = (next_ + 1) % kWindow;
    count_ = std::min(count_ + 1, kWindow);
  }

  [[nodiscard]] bool known() const { return count_ >= kEnough; }

  // 0 before the first sample.
  [[nodiscard]] std::uint64_t get() const {
    if (count_ == 0) return 0;
    auto sorted = samples_;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(count_ / 2);
    std::nth_element(sorted.begin(), middle, sorted.begin() + static_cast<std::ptrdiff_t>(count_));
    return *middle;
  }

 private:
  std::array<std::uint64_t, kWindow> samples_{};
  std::size_t next_ = 0;
  std::size_t count_ = 0;
};

}  // namespace duckfleet::fabric
