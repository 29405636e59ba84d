// A checksum of packed chunks that runs at the speed at which memory is read. Against damage, not against somebody who
// may write there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace duckfleet::duckd {

// Eight chains of (xor a word, multiply by an odd number, rotate). Each step can be undone, so two contents that differ
// in one word of a chain never end alike.
class Checksum {
 public:
  static constexpr std::size_t kBlockBytes = 64;

  Checksum() noexcept;
  // Every piece but the last is a multiple of kBlockBytes long.
  void update(std::span<const std::byte> bytes) noexcept;
  std::uint64_t finish() const noexcept;

  static std::uint64_t of(std::span<const std::byte> bytes) noexcept {
    Checksum sum;
    sum.update(bytes);
    return sum.finish();
  }

 private:
  std::array<std::uint64_t, 8> chains_;
  std::uint64_t size_ = 0;
};

}  // namespace duckfleet::duckd
