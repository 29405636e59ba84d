// Memory that kernels need besides their arguments: grows at first use, then stays.
#pragma once

#include <xmmintrin.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace duckfleet::kernels {

// Copies and fills between the kernels are written out: the C library's take 512-bit registers where a CPU has them, and
// on such a CPU (Zen 4) the 256-bit code after each call was seen to run slower for a microsecond, a tenth of a unit's time.
inline void copy_floats(const float* from, float* to, std::size_t count) noexcept {
  std::size_t i = 0;
  for (; i + 4 <= count; i += 4) _mm_storeu_ps(to + i, _mm_loadu_ps(from + i));
  for (; i < count; ++i) _mm_store_ss(to + i, _mm_load_ss(from + i));
}

inline void fill_floats(float* to, std::size_t count, float value) noexcept {
  __m128 four = _mm_set1_ps(value);
  __asm__("" : "+x"(four));  // not known to be zero: a loop that stores zeros becomes a call of memset
  std::size_t i = 0;
  for (; i + 4 <= count; i += 4) _mm_storeu_ps(to + i, four);
  for (; i < count; ++i) _mm_store_ss(to + i, four);
}

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
