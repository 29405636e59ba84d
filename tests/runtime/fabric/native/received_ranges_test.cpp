// ReceivedRanges against a plain array of bytes held or not.
#include "received_ranges.hpp"

#include <memory>
#include <random>
#include <vector>

#include "check.hpp"

using duckfleet::fabric::ReceivedRanges;
using duckfleet::wire::Range;

namespace {

void check_against_oracle(unsigned seed) {
  std::mt19937 random(seed);
  const std::uint32_t message_bytes = 1 + random() % 2000;
  const std::uint32_t longest = 1 + random() % 300;
  auto ranges = std::make_unique<ReceivedRanges>();
  ranges->reset(message_bytes);
  std::vector<char> held(message_bytes, 0);
  for (int step = 0; step < 400; ++step) {
    const std::uint32_t begin = random() % message_bytes;
    const std::uint32_t end = begin + 1 + random() % std::min(longest, message_bytes - begin);
    bool any_new = false;
    for (std::uint32_t i = begin; i < end; ++i) any_new |= held[i] == 0;
    const auto result = ranges->insert(begin, end, [&](std::uint32_t b, std::uint32_t e) {
      CHECK(begin <= b && b < e && e <= end);
      for (std::uint32_t i = b; i < e; ++i) {
        CHECK(held[i] == 0);  // no byte is ever written twice
        held[i] = 1;
      }
    });
    CHECK(result == (any_new ? ReceivedRanges::Insert::kNew : ReceivedRanges::Insert::kDuplicate));
    for (std::uint32_t i = begin; i < end; ++i) CHECK(held[i] == 1);

    std::uint32_t count = 0;
    std::uint32_t prefix = 0;
    for (std::uint32_t i = 0; i < message_bytes; ++i) {
      count += held[i] != 0 ? 1 : 0;
      if (held[i] != 0 && prefix == i) ++prefix;
    }
    CHECK(ranges->received_bytes() == count);
    CHECK(ranges->complete() == (count == message_bytes));
    CHECK(ranges->prefix_bytes() == prefix);

    std::vector<char> told(message_bytes, 1);
    std::array<Range, 2048> holes;
    const std::size_t num_holes = ranges->missing(holes);
    for (std::size_t i = 0; i < num_holes; ++i) {
      for (std::uint32_t b = holes[i].offset; b < holes[i].offset + holes[i].bytes; ++b) told[b] = 0;
    }
    CHECK(told == held);
  }
}

void scattered_fragments_are_bounded() {
  auto ranges = std::make_unique<ReceivedRanges>();
  ranges->reset(1 << 20);
  const auto ignore = [](std::uint32_t, std::uint32_t) {};
  for (std::uint32_t i = 0; i < ReceivedRanges::kMaxRanges; ++i) {
    CHECK(ranges->insert(i * 128 + 64, i * 128 + 128, ignore) == ReceivedRanges::Insert::kNew);
  }
  CHECK(ranges->insert((1 << 20) - 64, 1 << 20, ignore) == ReceivedRanges::Insert::kTooScattered);
  CHECK(ranges->insert(0, 64, ignore) == ReceivedRanges::Insert::kNew);  // closes a hole: always room for that
  CHECK(ranges->insert((1 << 20) - 64, 1 << 20, ignore) == ReceivedRanges::Insert::kTooScattered);
  CHECK(ranges->insert(128, 192, ignore) == ReceivedRanges::Insert::kNew);
  CHECK(ranges->insert((1 << 20) - 64, 1 << 20, ignore) == ReceivedRanges::Insert::kNew);

  std::array<Range, 3> first;
  CHECK(ranges->missing(first) == 3);
  CHECK(first[0].offset == 256 && first[0].bytes == 64);
}

}  // namespace

int main() {
  for (unsigned seed = 0; seed < 200; ++seed) check_against_oracle(seed);
  scattered_fragments_are_bounded();
}
