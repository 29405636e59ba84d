// BLAKE2b-256, the name of a logical chunk.
#pragma once

#include <sodium.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace duckfleet::duckd {

using Digest = std::array<std::uint8_t, 32>;

inline Digest make_digest(const std::uint8_t (&bytes)[32]) noexcept {
  Digest digest;
  std::memcpy(digest.data(), bytes, digest.size());
  return digest;
}

std::string to_hex(const Digest& digest);
std::optional<Digest> digest_from_hex(std::string_view hex);

// Fed in pieces.
class Hasher {
 public:
  Hasher() noexcept { crypto_generichash_init(&state_, nullptr, 0, sizeof(Digest)); }
  void update(std::span<const std::byte> bytes) noexcept {
    crypto_generichash_update(&state_, reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
  Digest finish() noexcept {
    Digest digest;
    crypto_generichash_final(&state_, digest.data(), digest.size());
    return digest;
  }

 private:
  crypto_generichash_state state_;
};

}  // namespace duckfleet::duckd
