// Tags of datagrams and the window that refuses a replayed one.
//
// A tag is an AEAD over associated data only: nothing is hidden, everything is authentic. The nonce is the direction
// and DataHeader.sequence, so one key may serve both directions, and no sequence may be used twice with one key.
#pragma once

#include <sodium.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "ghash.hpp"
#include "wire.hpp"

namespace duckfleet::wire {

inline constexpr std::size_t kDatagramKeyBytes = 32;

// Must have returned true once before anything else of this file is used.
bool initialise_crypto() noexcept;

// AES-256-GMAC needs AES-NI and PCLMUL on this CPU; the others are everywhere.
bool tag_algorithm_available(TagAlgorithm algorithm) noexcept;

// Bit i set: TagAlgorithm i is usable here (IdentityReply.tag_algorithms). kNone counts as usable.
std::uint8_t available_tag_algorithms() noexcept;

// A key of the data plane, expanded once. Safe to use from several threads at once; not copied by accident into logs:
// the bytes are wiped when it goes.
class DatagramKey {
 public:
  // nullopt: the algorithm is unknown or cannot run on this CPU. The key is not looked at for kNone.
  static std::optional<DatagramKey> create(TagAlgorithm algorithm, std::span<const std::uint8_t, kDatagramKeyBytes> key);

  DatagramKey(const DatagramKey&) noexcept = default;
  DatagramKey& operator=(const DatagramKey&) noexcept = default;
  ~DatagramKey();

  TagAlgorithm algorithm() const noexcept { return algorithm_; }

  // `datagram` is a DataHeader and its payload, complete but for sequence and tag, which are written here
  // (both zero for kNone).
  void seal(std::span<std::byte> datagram, Direction direction, std::uint64_t sequence) const noexcept;

  // True when the tag is right, always for kNone. Leaves the tag zeroed.
  bool verify(std::span<std::byte> datagram, Direction direction) const noexcept;

 private:
  using Tag = std::array<std::uint8_t, 16>;

  DatagramKey() noexcept = default;

  // Of AES-256-GMAC.
  Tag gmac(std::span<const std::byte> data, const std::uint8_t* nonce) const noexcept;
  void try_fast_ghash() noexcept;

  TagAlgorithm algorithm_ = TagAlgorithm::kNone;
  std::array<std::uint8_t, kDatagramKeyBytes> key_{};      // ChaCha20-Poly1305
  crypto_aead_aes256gcm_state aes_{};                      // AES-256-GCM, expanded
  FastGhash ghash_;                                        // the same key's, where it is usable
  bool has_fast_ghash_ = false;
};

// Which sequences of one key and direction have been seen (RFC 6479's ring of words, with a wide window: a unicast that
// overtakes a broadcast of hundreds of fragments must not make them look old). Sequence 0 is never accepted.
class ReplayWindow {
 public:
  static constexpr std::uint64_t kWidth = 8192;

  enum class Verdict : std::uint8_t { kFresh, kReplayed, kTooOld };

  // Before the tag is verified; changes nothing.
  Verdict check(std::uint64_t sequence) const noexcept;

  // After the tag was found right.
  void accept(std::uint64_t sequence) noexcept;

 private:
  // One word more than the width: the word that the highest sequence has entered is forgotten as a whole.
  static constexpr std::uint64_t kWords = kWidth / 64 + 1;

  std::uint64_t highest_ = 0;
  std::array<std::uint64_t, kWords> seen_{};  // word (sequence / 64) % kWords, bit sequence % 64
};

}  // namespace duckfleet::wire
