#include "vector_slot.hpp"

#include <cstdlib>
#include <cstring>
#include <new>

namespace duckfleet::fabric {

void VectorSlot::Free::operator()(float* p) const { std::free(p); }

VectorSlot::VectorSlot(std::size_t capacity_floats) : capacity_floats_(capacity_floats) {
  const std::size_t bytes = (capacity_floats * sizeof(float) + 63) / 64 * 64;
  data_.reset(static_cast<float*>(std::aligned_alloc(64, bytes > 0 ? bytes : 64)));
  if (!data_) throw std::bad_alloc();
  std::memset(data_.get(), 0, bytes);  // touch the pages now and not under the first forward
}

void VectorSlot::arm(std::size_t num_floats) {
  if (num_floats > capacity_floats_) std::abort();  // our own bug: the fabric sized the slots
  ready_floats_.store(0, std::memory_order_relaxed);
  ranges_.reset(static_cast<std::uint32_t>(num_floats * sizeof(float)));
}

VectorSlot::Take VectorSlot::take(std::uint32_t offset, std::span<const std::byte> payload) {
  const std::uint32_t total = ranges_.message_bytes();
  if (payload.empty() || offset > total || payload.size() > total - offset) return Take::kMisfit;
  if (offset % sizeof(float) != 0 || payload.size() % sizeof(float) != 0) return Take::kMisfit;
  auto* const to = reinterpret_cast<std::byte*>(data_.get());
  const auto end = static_cast<std::uint32_t>(offset + payload.size());
  const auto inserted = ranges_.insert(offset, end, [&](std::uint32_t b, std::uint32_t e) {
    std::memcpy(to + b, payload.data() + (b - offset), e - b);
  });
  switch (inserted) {
    case ReceivedRanges::Insert::kDuplicate: return Take::kDuplicate;
    case ReceivedRanges::Insert::kTooScattered: return Take::kTooScattered;
    case ReceivedRanges::Insert::kNew: break;
  }
  ready_floats_.store(ranges_.prefix_bytes() / sizeof(float), std::memory_order_release);
  return ranges_.complete() ? Take::kComplete : Take::kProgress;
}

}  // namespace duckfleet::fabric
