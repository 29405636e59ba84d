// The duck's half of the keyed control handshake, both halves of that between two ducks, and the sealed stream that
// follows. No socket here.
//
// Noise KNpsk2 in spirit: the host's static X25519 key is known beforehand, the enrolment secret is the pre-shared key.
//   transcript = BLAKE2b-256(name | fleet public key | hello frame | duck's ephemeral)
//   root       = BLAKE2b-512(key: enrolment secret; transcript | X25519(e_host, e_duck) | X25519(s_host, e_duck))
//   keys       = BLAKE2b-256(key: root; "host to duck" or "duck to host"), confirm = BLAKE2b-128(key: root; "confirm")
//
// Between two ducks, NNpsk2 in spirit: both have the secret of a ticket from the host; the caller takes the host's place.
//   transcript = BLAKE2b-256(name | peer hello frame | answering duck's ephemeral)
//   root       = BLAKE2b-512(key: ticket's secret; transcript | X25519(e_caller, e_answering))
#pragma once

#include <sodium.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "wire.hpp"

namespace duckfleet::wire {

inline constexpr std::size_t kStreamHeaderBytes = crypto_secretstream_xchacha20poly1305_HEADERBYTES;
inline constexpr std::size_t kSealBytes = crypto_secretstream_xchacha20poly1305_ABYTES;
inline constexpr std::size_t kMaxSealedBytes = sizeof(ControlHeader) + kMaxControlPayload + kSealBytes;
static_assert(kStreamHeaderBytes == sizeof(HelloReply::stream_header));

struct DuckKeys {
  std::array<std::uint8_t, 32> fleet_public{};
  std::array<std::uint8_t, 32> enrolment{};
};

using TicketSecret = std::array<std::uint8_t, 32>;

// Both directions of one connection; frames must be sealed and opened in order.
class SecretStream {
 public:
  // `u32 length` and the sealed frame.
  std::vector<std::byte> seal(std::span<const std::byte> frame);

  // Into `frame`, whose memory is used again. False when it was made with other keys, changed, or is out of order.
  bool open(std::span<const std::byte> sealed, std::vector<std::byte>& frame);

 private:
  friend class DuckHandshake;
  friend class PeerCall;
  crypto_secretstream_xchacha20poly1305_state push_{};
  crypto_secretstream_xchacha20poly1305_state pull_{};
};

class DuckHandshake {
 public:
  // `hello_frame` is the ControlHeader and Hello as they arrived. Nothing: the ephemeral key is of low order.
  static std::optional<DuckHandshake> accept(const DuckKeys& keys,
                                             std::span<const std::byte, sizeof(ControlHeader) + sizeof(Hello)> hello_frame);

  // The same for another duck's hello, which names a ticket with this secret.
  static std::optional<DuckHandshake> accept_peer(
      const TicketSecret& secret, std::span<const std::byte, sizeof(ControlHeader) + sizeof(PeerHello)> hello_frame);

  const HelloReply& reply() const noexcept { return reply_; }

  // With the header of the host's stream, which it sends after the reply.
  std::optional<SecretStream> finish(std::span<const std::byte> host_stream_header) noexcept;

 private:
  using Root = std::array<std::uint8_t, 64>;
  void take_keys(Root& root) noexcept;

  HelloReply reply_{};
  SecretStream stream_{};
  std::array<std::uint8_t, crypto_secretstream_xchacha20poly1305_KEYBYTES> pull_key_{};
};

// The calling duck's half.
class PeerCall {
 public:
  PeerCall(std::uint64_t ticket, const TicketSecret& secret);
  ~PeerCall();
  PeerCall(const PeerCall&) = delete;
  PeerCall& operator=(const PeerCall&) = delete;

  // What is sent first: header and PeerHello.
  const std::vector<std::byte>& hello_frame() const noexcept { return hello_frame_; }

  // The stream, and `first_bytes`, which must be sent before its first frame. Nothing: the other side does not know the secret.
  std::optional<SecretStream> finish(const HelloReply& reply, std::vector<std::byte>& first_bytes) noexcept;

 private:
  TicketSecret secret_;
  std::array<std::uint8_t, crypto_scalarmult_SCALARBYTES> ephemeral_;
  std::vector<std::byte> hello_frame_;
};

}  // namespace duckfleet::wire
