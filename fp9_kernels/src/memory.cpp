#include "memory.hpp"

#include <sys/mman.h>

#include <mutex>
#include <new>

namespace duckfleet::kernels {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHuge = std::size_t{2} << 20;
constexpr std::size_t kShared = 4 * kHuge;  // of a mapping that small pieces share

constexpr std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

// Zeroed, from a border between huge pages.
std::shared_ptr<std::byte> map(std::size_t bytes) {
  const std::size_t mapped = round_up(bytes, kHuge) + kHuge;
  void* at = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  auto* base = static_cast<std::byte*>(at);
  std::byte* data = base + (kHuge - reinterpret_cast<std::size_t>(base) % kHuge) % kHuge;
  ::madvise(data, round_up(bytes, kHuge), MADV_HUGEPAGE);  // a hint; refused by kernels without it
  return {data, [base, mapped](std::byte*) { ::munmap(base, mapped); }};
}

std::shared_ptr<std::byte> take_small(std::size_t bytes) {
  static std::mutex mutex;
  static std::weak_ptr<std::byte> current;  // weak: it is unmapped with the last piece of it
  static std::size_t used = 0;
  const std::lock_guard lock(mutex);
  std::shared_ptr<std::byte> mapping = current.lock();
  if (!mapping || used + bytes > kShared) {
    mapping = map(kShared);
    current = mapping;
    used = 0;
  }
  std::byte* data = mapping.get() + used;
  used += round_up(bytes, kPage);
  return {mapping, data};
}

}  // namespace

WeightMemory::WeightMemory(std::size_t bytes) : bytes_(bytes) {
  if (bytes != 0) data_ = bytes < kHuge ? take_small(bytes) : map(bytes);
}

}  // namespace duckfleet::kernels
