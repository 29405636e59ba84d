#include "received_ranges.hpp"

namespace duckfleet::fabric {

std::size_t ReceivedRanges::missing(std::span<wire::Range> out) const {
  std::size_t count = 0;
  std::uint32_t position = 0;
  for (std::size_t i = 0; i <= num_ranges_ && count < out.size(); ++i) {
    const std::uint32_t next = i < num_ranges_ ? ranges_[i].begin : message_bytes_;
    if (position < next) out[count++] = {position, next - position};
    if (i < num_ranges_) position = ranges_[i].end;
  }
  return count;
}

}  // namespace duckfleet::fabric
