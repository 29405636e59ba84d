#include "auth.hpp"

#include <algorithm>
#include <cstring>

namespace duckfleet::wire {
namespace {

constexpr std::size_t kSequenceAt = offsetof(DataHeader, sequence);
constexpr std::size_t kTagAt = offsetof(DataHeader, tag);
constexpr std::size_t kTagBytes = sizeof(DataHeader::tag);
static_assert(kTagBytes == crypto_aead_aes256gcm_ABYTES && kTagBytes == crypto_aead_chacha20poly1305_ietf_ABYTES);

using Nonce = std::array<std::uint8_t, 12>;
static_assert(sizeof(Nonce) == crypto_aead_aes256gcm_NPUBBYTES);
static_assert(sizeof(Nonce) == crypto_aead_chacha20poly1305_ietf_NPUBBYTES);

// The message of an AEAD that only authenticates: no bytes, but an address that is not null.
constexpr std::uint8_t kNoBytes[1] = {};

Nonce make_nonce(Direction direction, std::uint64_t sequence) noexcept {
  Nonce nonce;
  const auto way = static_cast<std::uint32_t>(direction);
  std::memcpy(nonce.data(), &way, 4);
  std::memcpy(nonce.data() + 4, &sequence, 8);
  return nonce;
}

}  // namespace

bool initialise_crypto() noexcept { return sodium_init() >= 0; }

bool tag_algorithm_available(TagAlgorithm algorithm) noexcept {
  switch (algorithm) {
    case TagAlgorithm::kNone:
    case TagAlgorithm::kChaCha20Poly1305:
      return true;
    case TagAlgorithm::kAes256Gmac:
      return crypto_aead_aes256gcm_is_available() != 0;
  }
  return false;
}

std::uint8_t available_tag_algorithms() noexcept {
  std::uint8_t mask = 0;
  for (int i = 0; i < 3; ++i) {
    if (tag_algorithm_available(static_cast<TagAlgorithm>(i))) mask = static_cast<std::uint8_t>(mask | (1 << i));
  }
  return mask;
}

std::optional<DatagramKey> DatagramKey::create(TagAlgorithm algorithm,
                                               std::span<const std::uint8_t, kDatagramKeyBytes> key) {
  if (!tag_algorithm_available(algorithm)) return std::nullopt;
  DatagramKey made;
  made.algorithm_ = algorithm;
  if (algorithm == TagAlgorithm::kAes256Gmac) {
    crypto_aead_aes256gcm_beforenm(&made.aes_, key.data());
    if (fast_ghash_available()) made.try_fast_ghash();
  } else if (algorithm == TagAlgorithm::kChaCha20Poly1305) {
    std::ranges::copy(key, made.key_.begin());
  }
  return made;
}

DatagramKey::~DatagramKey() {
  sodium_memzero(key_.data(), key_.size());
  sodium_memzero(&aes_, sizeof aes_);
  ghash_.wipe();
}

DatagramKey::Tag DatagramKey::gmac(std::span<const std::byte> data, const std::uint8_t* nonce) const noexcept {
  // Of no data the hash is zero, and the tag is what the nonce alone gives.
  const std::size_t slow_bytes = has_fast_ghash_ ? 0 : data.size();
  const auto* from = slow_bytes == 0 ? kNoBytes : reinterpret_cast<const std::uint8_t*>(data.data());
  Tag tag;
  std::uint8_t no_output[1];
  crypto_aead_aes256gcm_encrypt_detached_afternm(no_output, tag.data(), nullptr, kNoBytes, 0, from, slow_bytes, nullptr,
                                                 nonce, &aes_);
  if (has_fast_ghash_) {
    std::uint8_t hash[kTagBytes];
    ghash_.hash(data.data(), data.size(), hash);
    for (std::size_t i = 0; i < kTagBytes; ++i) tag[i] ^= hash[i];
  }
  return tag;
}

// The hash key out of the tag of a zero block. Used only when a longer tag comes out right with it.
void DatagramKey::try_fast_ghash() noexcept {
  std::array<std::byte, 600> data{};
  const Nonce nonce{};
  const Tag of_nothing = gmac({}, nonce.data());
  const Tag of_zeros = gmac(std::span(data).first(16), nonce.data());
  std::uint8_t hash[kTagBytes];
  for (std::size_t i = 0; i < kTagBytes; ++i) hash[i] = of_zeros[i] ^ of_nothing[i];
  ghash_ = FastGhash::from_hash_of_zero_block(hash);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 167 + 13);
  const Tag expected = gmac(data, nonce.data());
  has_fast_ghash_ = true;
  has_fast_ghash_ = gmac(data, nonce.data()) == expected;
}

void DatagramKey::seal(std::span<std::byte> datagram, Direction direction, std::uint64_t sequence) const noexcept {
  if (algorithm_ == TagAlgorithm::kNone) sequence = 0;
  std::memcpy(datagram.data() + kSequenceAt, &sequence, 8);
  std::memset(datagram.data() + kTagAt, 0, kTagBytes);
  if (algorithm_ == TagAlgorithm::kNone) return;

  const Nonce nonce = make_nonce(direction, sequence);
  const auto* data = reinterpret_cast<const std::uint8_t*>(datagram.data());
  Tag tag;
  unsigned long long tag_len = 0;
  std::uint8_t no_output[1];
  if (algorithm_ == TagAlgorithm::kAes256Gmac) {
    tag = gmac(datagram, nonce.data());
  } else {
    crypto_aead_chacha20poly1305_ietf_encrypt_detached(no_output, tag.data(), &tag_len, kNoBytes, 0, data,
                                                       datagram.size(), nullptr, nonce.data(), key_.data());
  }
  std::memcpy(datagram.data() + kTagAt, tag.data(), kTagBytes);
}

bool DatagramKey::verify(std::span<std::byte> datagram, Direction direction) const noexcept {
  std::array<std::uint8_t, kTagBytes> tag;
  std::memcpy(tag.data(), datagram.data() + kTagAt, kTagBytes);
  std::memset(datagram.data() + kTagAt, 0, kTagBytes);
  if (algorithm_ == TagAlgorithm::kNone) return true;

  std::uint64_t sequence = 0;
  std::memcpy(&sequence, datagram.data() + kSequenceAt, 8);
  const Nonce nonce = make_nonce(direction, sequence);
  if (algorithm_ == TagAlgorithm::kAes256Gmac) {
    const Tag expected = gmac(datagram, nonce.data());
    return crypto_verify_16(expected.data(), tag.data()) == 0;
  }
  const auto* data = reinterpret_cast<const std::uint8_t*>(datagram.data());
  std::uint8_t no_output[1];
  return crypto_aead_chacha20poly1305_ietf_decrypt_detached(no_output, nullptr, kNoBytes, 0, tag.data(), data,
                                                            datagram.size(), nonce.data(), key_.data()) == 0;
}

ReplayWindow::Verdict ReplayWindow::check(std::uint64_t sequence) const noexcept {
  if (sequence > highest_) return Verdict::kFresh;
  if (sequence == 0 || highest_ - sequence >= kWidth) return Verdict::kTooOld;
  return (seen_[sequence / 64 % kWords] >> (sequence % 64)) & 1 ? Verdict::kReplayed : Verdict::kFresh;
}

void ReplayWindow::accept(std::uint64_t sequence) noexcept {
  if (sequence > highest_) {
    // Words that the window moves into are forgotten; a jump past the window forgets all of them.
    const std::uint64_t first = highest_ / 64 + 1;
    const std::uint64_t last = sequence / 64;
    if (last >= first) {
      const std::uint64_t count = std::min(last - first + 1, kWords);
      for (std::uint64_t i = 0; i < count; ++i) seen_[(last - i) % kWords] = 0;
    }
    highest_ = sequence;
  }
  seen_[sequence / 64 % kWords] |= std::uint64_t{1} << (sequence % 64);
}

}  // namespace duckfleet::wire
