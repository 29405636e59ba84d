#include "handshake.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace duckfleet::wire {
namespace {

constexpr std::string_view kProtocolName = "duckfleet control v1: KNpsk2 X25519 BLAKE2b secretstream";

using Root = std::array<std::uint8_t, 64>;

const std::uint8_t* as_bytes(std::string_view text) noexcept {
  return reinterpret_cast<const std::uint8_t*>(text.data());
}

void derive(const Root& root, std::string_view label, std::span<std::uint8_t> out) noexcept {
  crypto_generichash(out.data(), out.size(), as_bytes(label), label.size(), root.data(), root.size());
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

std::optional<std::vector<std::byte>> SecretStream::open(std::span<const std::byte> sealed) {
  if (sealed.size() < kSealBytes) return std::nullopt;
  std::vector<std::byte> frame(sealed.size() - kSealBytes);
  std::uint8_t tag = 0;
  std::uint8_t nothing = 0;
  auto* out = frame.empty() ? &nothing : reinterpret_cast<std::uint8_t*>(frame.data());
  if (crypto_secretstream_xchacha20poly1305_pull(&pull_, out, nullptr, &tag,
                                                 reinterpret_cast<const std::uint8_t*>(sealed.data()), sealed.size(),
                                                 nullptr, 0) != 0) {
    return std::nullopt;
  }
  return frame;
}

std::optional<DuckHandshake> DuckHandshake::accept(
    const DuckKeys& keys, std::span<const std::byte, sizeof(ControlHeader) + sizeof(Hello)> hello_frame) {
  Hello hello;
  std::memcpy(&hello, hello_frame.data() + sizeof(ControlHeader), sizeof hello);

  DuckHandshake made;
  made.reply_.mode = static_cast<std::uint8_t>(ControlMode::kKeyed);
  std::array<std::uint8_t, crypto_scalarmult_SCALARBYTES> ephemeral;
  std::array<std::uint8_t, crypto_scalarmult_BYTES> ee, se;
  randombytes_buf(ephemeral.data(), ephemeral.size());
  crypto_scalarmult_base(made.reply_.ephemeral, ephemeral.data());
  const bool usable = crypto_scalarmult(ee.data(), ephemeral.data(), hello.ephemeral) == 0 &&
                      crypto_scalarmult(se.data(), ephemeral.data(), keys.fleet_public.data()) == 0;
  sodium_memzero(ephemeral.data(), ephemeral.size());
  if (!usable) return std::nullopt;

  std::array<std::uint8_t, 32> transcript;
  crypto_generichash_state hash;
  crypto_generichash_init(&hash, nullptr, 0, transcript.size());
  crypto_generichash_update(&hash, as_bytes(kProtocolName), kProtocolName.size());
  crypto_generichash_update(&hash, keys.fleet_public.data(), keys.fleet_public.size());
  crypto_generichash_update(&hash, reinterpret_cast<const std::uint8_t*>(hello_frame.data()), hello_frame.size());
  crypto_generichash_update(&hash, made.reply_.ephemeral, sizeof made.reply_.ephemeral);
  crypto_generichash_final(&hash, transcript.data(), transcript.size());

  Root root;
  crypto_generichash_init(&hash, keys.enrolment.data(), keys.enrolment.size(), root.size());
  crypto_generichash_update(&hash, transcript.data(), transcript.size());
  crypto_generichash_update(&hash, ee.data(), ee.size());
  crypto_generichash_update(&hash, se.data(), se.size());
  crypto_generichash_final(&hash, root.data(), root.size());

  std::array<std::uint8_t, crypto_secretstream_xchacha20poly1305_KEYBYTES> push_key;
  derive(root, "confirm", made.reply_.confirm);
  derive(root, "duck to host", push_key);
  derive(root, "host to duck", made.pull_key_);
  crypto_secretstream_xchacha20poly1305_init_push(&made.stream_.push_, made.reply_.stream_header, push_key.data());
  sodium_memzero(root.data(), root.size());
  sodium_memzero(push_key.data(), push_key.size());
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

}  // namespace duckfleet::wire
