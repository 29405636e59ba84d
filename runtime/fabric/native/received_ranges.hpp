// Which bytes of one message have arrived: sorted, disjoint ranges in a fixed array, no allocation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "wire.hpp"

namespace duckfleet::fabric {

class ReceivedRanges {
 public:
  // A message in order is one range; every hole adds one. What would need more is refused and asked for again.
  static constexpr std::size_t kMaxRanges = 512;

  enum class Insert { kNew, kDuplicate, kTooScattered };

  // Forget everything; the message is `message_bytes` long.
  void reset(std::uint32_t message_bytes) {
    num_ranges_ = 0;
    message_bytes_ = message_bytes;
    received_bytes_ = 0;
  }

  // Note [begin, end), which the caller has checked against the message. `on_new(begin, end)` is called for
  // each piece that was not held before, so that bytes once written are never written again.
  template <class OnNew>
  Insert insert(std::uint32_t begin, std::uint32_t end, OnNew&& on_new) {
    std::size_t first = 0;  // the first range that touches or follows [begin, end)
    if (num_ranges_ > 0 && ranges_[num_ranges_ - 1].end < begin) {
      first = num_ranges_;
    } else {
      while (first < num_ranges_ && ranges_[first].end < begin) ++first;
    }
    if (first < num_ranges_ && ranges_[first].begin <= begin && end <= ranges_[first].end) return Insert::kDuplicate;
    std::size_t last = first;  // one past the last range that touches it
    while (last < num_ranges_ && ranges_[last].begin <= end) ++last;
    if (first == last && num_ranges_ == kMaxRanges) return Insert::kTooScattered;

    std::uint32_t position = begin;
    for (std::size_t i = first; i < last && position < end; ++i) {
      if (position < ranges_[i].begin) give(position, ranges_[i].begin, on_new);
      if (position < ranges_[i].end) position = ranges_[i].end;
    }
    if (position < end) give(position, end, on_new);

    if (first == last) {
      for (std::size_t i = num_ranges_; i > first; --i) ranges_[i] = ranges_[i - 1];
      ranges_[first] = {begin, end};
      ++num_ranges_;
      return Insert::kNew;
    }
    Span& merged = ranges_[first];
    if (begin < merged.begin) merged.begin = begin;
    if (ranges_[last - 1].end > merged.end) merged.end = ranges_[last - 1].end;
    if (end > merged.end) merged.end = end;
    const std::size_t gone = last - first - 1;
    if (gone > 0) {
      for (std::size_t i = last; i < num_ranges_; ++i) ranges_[i - gone] = ranges_[i];
      num_ranges_ -= gone;
    }
    return Insert::kNew;
  }

  [[nodiscard]] bool complete() const { return received_bytes_ == message_bytes_; }
  [[nodiscard]] std::uint32_t message_bytes() const { return message_bytes_; }
  [[nodiscard]] std::uint32_t received_bytes() const { return received_bytes_; }

  // Bytes from the start of the message that are there without a hole.
  [[nodiscard]] std::uint32_t prefix_bytes() const {
    return num_ranges_ > 0 && ranges_[0].begin == 0 ? ranges_[0].end : 0;
  }

  // The first holes, in order, as many as fit; returns how many.
  std::size_t missing(std::span<wire::Range> out) const;

 private:
  struct Span {
    std::uint32_t begin;
    std::uint32_t end;
  };

  template <class OnNew>
  void give(std::uint32_t begin, std::uint32_t end, OnNew& on_new) {
    received_bytes_ += end - begin;
    on_new(begin, end);
  }

  std::array<Span, kMaxRanges + 1> ranges_;
  std::size_t num_ranges_ = 0;
  std::uint32_t message_bytes_ = 0;
  std::uint32_t received_bytes_ = 0;
};

}  // namespace duckfleet::fabric
