#include "handshake.hpp"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <string_view>

#include "control_frame.hpp"

namespace duckfleet::wire {
namespace {

constexpr std::string_view kProtocolName = "duckfleet control v1: KNpsk2 X25519 BLAKE2b secretstream";
constexpr std::string_view kPeerProtocolName = "duckfleet peer v1: NNpsk2 X25519 BLAKE2b secretstream";
constexpr std::string_view kConfirm = "confirm", kToDuck = "host to duck", kFromDuck = "duck to host";

using Root = std::array<std::uint8_t, 64>;

std::span<const std::uint8_t> octets(std::string_view text) noexcept {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

std::span<const std::uint8_t> octets(std::span<const std::byte> bytes) noexcept {
  return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

void derive(const Root& root, std::string_view label, std::span<std::uint8_t> out) noexcept {
  crypto_generichash(out.data(), out.size(), octets(label).data(), label.size(), root.data(), root.size());
}

std::array<std::uint8_t, 32> transcript_of(std::initializer_list<std::span<const std::uint8_t>> parts) noexcept {
  std::array<std::uint8_t, 32> transcript;
  crypto_generichash_state hash;
  crypto_generichash_init(&hash, nullptr, 0, transcript.size());
  for (const auto part : parts) crypto_generichash_update(&hash, part.data(), part.size());
  crypto_generichash_final(&hash, transcript.data(), transcript.size());
  return transcript;
}

// An X25519 key pair for one handshake, gone with it.
class Ephemeral {
 public:
  explicit Ephemeral(std::span<std::uint8_t, crypto_scalarmult_BYTES> public_key) noexcept {
    randombytes_buf(secret_.data(), secret_.size());
    crypto_scalarmult_base(public_key.data(), secret_.data());
  }
  ~Ephemeral() { sodium_memzero(secret_.data(), secret_.size()); }
  Ephemeral(const Ephemeral&) = delete;
  Ephemeral& operator=(const Ephemeral&) = delete;

  // False for one of the few public keys that agree on nothing.
  bool agree(std::span<const std::uint8_t, crypto_scalarmult_BYTES> theirs,
             std::span<std::uint8_t, crypto_scalarmult_BYTES> agreed) const noexcept {
    return crypto_scalarmult(agreed.data(), secret_.data(), theirs.data()) == 0;
  }

 private:
  std::array<std::uint8_t, crypto_scalarmult_SCALARBYTES> secret_;
};

// `secrets` are X25519 agreements, one after the other.
Root root_of(std::span<const std::uint8_t> key, const std::array<std::uint8_t, 32>& transcript,
             std::span<const std::uint8_t> secrets) noexcept {
  Root root;
  crypto_generichash_state hash;
  crypto_generichash_init(&hash, key.data(), key.size(), root.size());
  crypto_generichash_update(&hash, transcript.data(), transcript.size());
  crypto_generichash_update(&hash, secrets.data(), secrets.size());
  crypto_generichash_final(&hash, root.data(), root.size());
  return root;
}

Root peer_root(const TicketSecret& secret, std::span<const std::byte> hello_frame,
               std::span<const std::uint8_t, 32> answering_ephemeral,
               const std::array<std::uint8_t, crypto_scalarmult_BYTES>& ee) noexcept {
  return root_of(secret, transcript_of({octets(kPeerProtocolName), octets(hello_frame), answering_ephemeral}), ee);
}

}  // namespace

std::vector<std::byte> SecretStream::seal(std::span<const std::byte> frame) {
  const auto length = static_cast<std::uint32_t>(frame.size() + kSealBytes);
  std::vector<std::byte> out(sizeof length + length);
  std::memcpy(out.data(), &length, sizeof length);
  crypto_secretstream_xchacha20poly1305_push(&push_, reinterpret_cast<std::uint8_t*>(out.data() + sizeof length),
                                             nullptr, reinterpret_cast<const std::uint8_t*>(frame.data()),
                                             frame.size(), nullptr, 0, 0);
  return out;
}

bool SecretStream::open(std::span<const std::byte> sealed, std::vector<std::byte>& frame) {
  if (sealed.size() < kSealBytes) return false;
  frame.resize(sealed.size() - kSealBytes);
  std::uint8_t tag = 0;
  std::uint8_t nothing = 0;
  auto* out = frame.empty() ? &nothing : reinterpret_cast<std::uint8_t*>(frame.data());
  return crypto_secretstream_xchacha20poly1305_pull(&pull_, out, nullptr, &tag,
                                                    reinterpret_cast<const std::uint8_t*>(sealed.data()),
                                                    sealed.size(), nullptr, 0) == 0;
}

std::optional<DuckHandshake> DuckHandshake::accept(
    const DuckKeys& keys, std::span<const std::byte, sizeof(ControlHeader) + sizeof(Hello)> hello_frame) {
  Hello hello;
  std::memcpy(&hello, hello_frame.data() + sizeof(ControlHeader), sizeof hello);

  DuckHandshake made;
  made.reply_.mode = static_cast<std::uint8_t>(ControlMode::kKeyed);
  const Ephemeral ephemeral(made.reply_.ephemeral);
  std::array<std::uint8_t, 2 * crypto_scalarmult_BYTES> agreed;
  const std::span both(agreed);
  if (!ephemeral.agree(hello.ephemeral, both.first<crypto_scalarmult_BYTES>()) ||
      !ephemeral.agree(keys.fleet_public, both.last<crypto_scalarmult_BYTES>())) {
    return std::nullopt;
  }
  const auto transcript =
      transcript_of({octets(kProtocolName), keys.fleet_public, octets(hello_frame), made.reply_.ephemeral});
  Root root = root_of(keys.enrolment, transcript, agreed);
  made.take_keys(root);
  return made;
}

void DuckHandshake::take_keys(Root& root) noexcept {
  std::array<std::uint8_t, crypto_secretstream_xchacha20poly1305_KEYBYTES> push_key;
  derive(root, kConfirm, reply_.confirm);
  derive(root, kFromDuck, push_key);
  derive(root, kToDuck, pull_key_);
  crypto_secretstream_xchacha20poly1305_init_push(&stream_.push_, reply_.stream_header, push_key.data());
  sodium_memzero(root.data(), root.size());
  sodium_memzero(push_key.data(), push_key.size());
}

std::optional<DuckHandshake> DuckHandshake::accept_peer(
    const TicketSecret& secret, std::span<const std::byte, sizeof(ControlHeader) + sizeof(PeerHello)> hello_frame) {
  PeerHello hello;
  std::memcpy(&hello, hello_frame.data() + sizeof(ControlHeader), sizeof hello);
  DuckHandshake made;
  made.reply_.mode = static_cast<std::uint8_t>(ControlMode::kKeyed);
  const Ephemeral ephemeral(made.reply_.ephemeral);
  std::array<std::uint8_t, crypto_scalarmult_BYTES> ee;
  if (!ephemeral.agree(hello.ephemeral, ee)) return std::nullopt;
  Root root = peer_root(secret, hello_frame, made.reply_.ephemeral, ee);
  made.take_keys(root);
  return made;
}

std::optional<SecretStream> DuckHandshake::finish(std::span<const std::byte> host_stream_header) noexcept {
  if (host_stream_header.size() != kStreamHeaderBytes) return std::nullopt;
  const auto* header = reinterpret_cast<const std::uint8_t*>(host_stream_header.data());
  if (crypto_secretstream_xchacha20poly1305_init_pull(&stream_.pull_, header, pull_key_.data()) != 0) {
    return std::nullopt;
  }
  sodium_memzero(pull_key_.data(), pull_key_.size());
  return stream_;
}

PeerCall::PeerCall(std::uint64_t ticket, const TicketSecret& secret) : secret_(secret) {
  PeerHello hello{};
  hello.ticket = ticket;
  randombytes_buf(ephemeral_.data(), ephemeral_.size());
  crypto_scalarmult_base(hello.ephemeral, ephemeral_.data());
  hello_frame_ = make_control_frame(ControlType::kPeerHello, 0, bytes_of(hello));
}

PeerCall::~PeerCall() {
  sodium_memzero(secret_.data(), secret_.size());
  sodium_memzero(ephemeral_.data(), ephemeral_.size());
}

std::optional<SecretStream> PeerCall::finish(const HelloReply& reply, std::vector<std::byte>& first_bytes) noexcept {
  std::array<std::uint8_t, crypto_scalarmult_BYTES> ee;
  if (crypto_scalarmult(ee.data(), ephemeral_.data(), reply.ephemeral) != 0) return std::nullopt;
  Root root = peer_root(secret_, hello_frame_, reply.ephemeral, ee);
  std::array<std::uint8_t, sizeof reply.confirm> confirm;
  std::array<std::uint8_t, crypto_secretstream_xchacha20poly1305_KEYBYTES> push_key, pull_key;
  derive(root, kConfirm, confirm);
  derive(root, kToDuck, push_key);
  derive(root, kFromDuck, pull_key);
  sodium_memzero(root.data(), root.size());
  SecretStream stream;
  const std::uint32_t length = kStreamHeaderBytes;
  first_bytes.resize(sizeof length + length);
  std::memcpy(first_bytes.data(), &length, sizeof length);
  crypto_secretstream_xchacha20poly1305_init_push(
      &stream.push_, reinterpret_cast<std::uint8_t*>(first_bytes.data() + sizeof length), push_key.data());
  const bool proved =
      sodium_memcmp(confirm.data(), reply.confirm, confirm.size()) == 0 &&
      crypto_secretstream_xchacha20poly1305_init_pull(&stream.pull_, reply.stream_header, pull_key.data()) == 0;
  sodium_memzero(push_key.data(), push_key.size());
  sodium_memzero(pull_key.data(), pull_key.size());
  if (!proved) return std::nullopt;
  return stream;
}

}  // namespace duckfleet::wire
