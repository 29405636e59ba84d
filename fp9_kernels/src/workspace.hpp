// Memory that kernels need besides their arguments: grows at first use, then stays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace duckfleet::kernels {

// A 64-byte aligned array that only ever grows; its contents are lost when it does.
template <typename T>
class GrowingArray {
 public:
  T* reserve(std::size_t count) {
    if (count > capacity_) {
      data_.reset();
      data_.reset(static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t{64})));
      capacity_ = count;
    }
    return data_.get();
  }
  T* get() const noexcept { return data_.get(); }

 private:
  struct Free {
    void operator()(T* data) const noexcept { ::operator delete(data, std::align_val_t{64}); }
  };
  std::unique_ptr<T, Free> data_;
  std::size_t capacity_ = 0;
};

// Floats from one row of a [rows, n] buffer to the next: a multiple of 16 that is 512 bytes past a multiple of 4 KB, so
// that the rows of a block of tokens do not fall upon the same sets of a cache.
constexpr std::size_t spread_stride(std::size_t n) noexcept {
  constexpr std::size_t kPage = 1024, kStep = 128;
  if (n <= kStep) return (n + 15) / 16 * 16;
  return (n + kPage - 1 - kStep) / kPage * kPage + kStep;
}

}  // namespace duckfleet::kernels
