// GHASH (NIST SP 800-38D) of associated data alone, 16 blocks at a time, where the CPU multiplies without carries in
// vectors (VPCLMULQDQ; Gracemont, Zen 3 and later). Tags are those of any other AES-GCM: only faster.
#pragma once

#include <cstddef>
#include <cstdint>

namespace duckfleet::wire {

// Whether this CPU can run what is below.
bool fast_ghash_available() noexcept;

class FastGhash {
 public:
  FastGhash() noexcept = default;

  // From the hash of one zero block of data under the key: the hash key itself need not be known.
  static FastGhash from_hash_of_zero_block(const std::uint8_t (&hash)[16]) noexcept;

  // GHASH of `size` bytes as associated data of an empty message: their blocks, the last one padded, then the lengths.
  void hash(const std::byte* data, std::size_t size, std::uint8_t (&out)[16]) const noexcept;

  void wipe() noexcept;

 private:
  alignas(32) std::uint8_t powers_[16][16]{};  // of the hash key, the 16th first
};

}  // namespace duckfleet::wire
