#include "digest.hpp"

namespace duckfleet::duckd {

std::string to_hex(const Digest& digest) {
  std::array<char, 2 * sizeof(Digest) + 1> text;
  sodium_bin2hex(text.data(), text.size(), digest.data(), digest.size());
  return text.data();
}

std::optional<Digest> digest_from_hex(std::string_view hex) {
  Digest digest;
  std::size_t size = 0;
  if (hex.size() != 2 * digest.size() ||
      sodium_hex2bin(digest.data(), digest.size(), hex.data(), hex.size(), nullptr, &size, nullptr) != 0 ||
      size != digest.size()) {
    return std::nullopt;
  }
  return digest;
}

}  // namespace duckfleet::duckd
