// Memory for weights: page aligned, zeroed, on huge pages where the kernel grants them.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <span>
#include <utility>

namespace duckfleet::kernels {

class WeightMemory {
 public:
  WeightMemory() noexcept = default;
  // Throws std::bad_alloc.
  explicit WeightMemory(std::size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    constexpr std::size_t kHuge = std::size_t{2} << 20;
    mapped_ = bytes >= kHuge ? (bytes + kHuge - 1) / kHuge * kHuge + kHuge : bytes;
    void* at = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<std::byte*>(at);
    data_ = base_;
    if (bytes >= kHuge) {
      data_ += (kHuge - reinterpret_cast<std::size_t>(base_) % kHuge) % kHuge;
      ::madvise(data_, static_cast<std::size_t>(base_ + mapped_ - data_) / kHuge * kHuge, MADV_HUGEPAGE);
    }
  }
  ~WeightMemory() {
    if (base_ != nullptr) ::munmap(base_, mapped_);
  }
  WeightMemory(WeightMemory&& other) noexcept { swap(other); }
  WeightMemory& operator=(WeightMemory&& other) noexcept {
    swap(other);
    return *this;
  }

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return bytes_; }
  std::span<std::byte> bytes() const noexcept { return {data_, bytes_}; }

 private:
  void swap(WeightMemory& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(data_, other.data_);
    std::swap(mapped_, other.mapped_);
    std::swap(bytes_, other.bytes_);
  }
  std::byte* base_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t mapped_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace duckfleet::kernels
