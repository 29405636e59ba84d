// Tags against published vectors and against every change of a bit; the replay window against a plain set.
#include "auth.hpp"

#include <array>
#include <cstring>
#include <random>
#include <set>
#include <string_view>
#include <vector>

#include "check.hpp"

namespace {

using namespace duckfleet::wire;

std::array<std::uint8_t, 32> a_key(std::uint8_t first) {
  std::array<std::uint8_t, 32> key{};
  for (std::size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::uint8_t>(first + 3 * i);
  return key;
}

std::vector<std::byte> a_datagram(std::size_t payload_bytes) {
  std::vector<std::byte> bytes(sizeof(DataHeader) + payload_bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + 1);
  return bytes;
}

constexpr std::array kAlgorithms = {TagAlgorithm::kAes256Gmac, TagAlgorithm::kChaCha20Poly1305};

// Computed with python-cryptography 50 (AESGCM and ChaCha20Poly1305 of OpenSSL) over the datagram above with
// sequence 0x0102030405060708, direction host to duck.
struct Vector {
  TagAlgorithm algorithm;
  std::array<std::uint8_t, 16> tag;
};
constexpr std::array kVectors = {
    Vector{TagAlgorithm::kAes256Gmac, {0x06, 0xf7, 0x71, 0x93, 0x00, 0x54, 0xa1, 0xc4, 0xa9, 0x5f, 0xfb, 0x78, 0x36, 0x94, 0x83, 0x56}},
    Vector{TagAlgorithm::kChaCha20Poly1305, {0x84, 0xf8, 0xcd, 0x0c, 0xc0, 0xb3, 0x00, 0x1d, 0xa9, 0xf9, 0x96, 0xeb, 0x94, 0x74, 0x26, 0x13}},
};

void tags_are_those_of_another_library() {
  for (const Vector& vector : kVectors) {
    if (!tag_algorithm_available(vector.algorithm)) continue;
    const auto key = DatagramKey::create(vector.algorithm, a_key(5));
    auto datagram = a_datagram(100);
    key->seal(datagram, Direction::kHostToDuck, 0x0102030405060708);
    CHECK(std::memcmp(datagram.data() + offsetof(DataHeader, tag), vector.tag.data(), 16) == 0);
  }
}

// Whatever of this CPU the tags are made with: libsodium's own, for every length around a group of blocks.
void tags_of_every_length_are_libsodiums() {
  if (!tag_algorithm_available(TagAlgorithm::kAes256Gmac)) return;
  std::mt19937 random(3);
  for (const int first : {5, 90, 200}) {
    const auto bytes = a_key(static_cast<std::uint8_t>(first));
    const auto key = DatagramKey::create(TagAlgorithm::kAes256Gmac, bytes);
    for (std::size_t size = 0; size < 1400; size += size < 600 ? 1 : 37) {
      auto datagram = a_datagram(size);
      for (std::size_t i = sizeof(DataHeader); i < datagram.size(); ++i) datagram[i] = static_cast<std::byte>(random());
      const std::uint64_t sequence = random();
      key->seal(datagram, Direction::kHostToDuck, sequence);
      auto plain = datagram;
      std::memset(plain.data() + offsetof(DataHeader, tag), 0, 16);
      std::array<std::uint8_t, 12> nonce{};
      std::memcpy(nonce.data() + 4, &sequence, 8);
      std::array<std::uint8_t, 16> tag{};
      std::uint8_t no_text = 0;  // declared never to be null
      crypto_aead_aes256gcm_encrypt_detached(&no_text, tag.data(), nullptr, nullptr, 0,
                                             reinterpret_cast<const std::uint8_t*>(plain.data()), plain.size(), nullptr,
                                             nonce.data(), bytes.data());
      CHECK(std::memcmp(datagram.data() + offsetof(DataHeader, tag), tag.data(), 16) == 0);
    }
  }
}

void every_changed_bit_is_seen() {
  for (const TagAlgorithm algorithm : kAlgorithms) {
    if (!tag_algorithm_available(algorithm)) continue;
    const auto key = DatagramKey::create(algorithm, a_key(1));
    const auto other = DatagramKey::create(algorithm, a_key(2));
    auto sealed = a_datagram(40);
    key->seal(sealed, Direction::kDuckToHost, 77);
    auto copy = sealed;
    CHECK(key->verify(copy, Direction::kDuckToHost));
    copy = sealed;
    CHECK(!key->verify(copy, Direction::kHostToDuck));
    copy = sealed;
    CHECK(!other->verify(copy, Direction::kDuckToHost));
    for (std::size_t bit = 0; bit < 8 * sealed.size(); ++bit) {
      copy = sealed;
      copy[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
      CHECK(!key->verify(copy, Direction::kDuckToHost));
    }
    copy = sealed;
    copy.pop_back();
    CHECK(!key->verify(copy, Direction::kDuckToHost));
  }
}

void no_tags_means_zeros() {
  const auto key = DatagramKey::create(TagAlgorithm::kNone, a_key(1));
  auto datagram = a_datagram(10);
  key->seal(datagram, Direction::kHostToDuck, 5);
  DataHeader header;
  std::memcpy(&header, datagram.data(), sizeof header);
  CHECK(header.sequence == 0);
  for (const auto byte : header.tag) CHECK(byte == 0);
  CHECK(key->verify(datagram, Direction::kHostToDuck));
}

void unknown_algorithms_make_no_key() {
  for (int number = 3; number < 256; ++number) {
    CHECK(!DatagramKey::create(static_cast<TagAlgorithm>(number), a_key(1)));
    CHECK(!tag_algorithm_available(static_cast<TagAlgorithm>(number)));
  }
  CHECK((available_tag_algorithms() & 0b101) == 0b101);
}

// Everything accepted, and by definition: fresh is what was not seen and lies less than kWidth below the highest.
void window_against_a_set() {
  std::mt19937_64 random(20240701);
  for (int round = 0; round < 60; ++round) {
    ReplayWindow window;
    std::set<std::uint64_t> seen;
    std::uint64_t highest = 0;
    const std::uint64_t spread = std::uint64_t{1} << (2 + round % 16);
    for (int i = 0; i < 4000; ++i) {
      const std::uint64_t base = highest > spread ? highest - spread : 0;
      const std::uint64_t sequence = base + random() % (2 * spread);
      const bool too_old = sequence == 0 || (sequence <= highest && highest - sequence >= ReplayWindow::kWidth);
      const auto verdict = window.check(sequence);
      if (too_old) {
        CHECK(verdict == ReplayWindow::Verdict::kTooOld);
      } else if (seen.contains(sequence)) {
        CHECK(verdict == ReplayWindow::Verdict::kReplayed);
      } else {
        CHECK(verdict == ReplayWindow::Verdict::kFresh);
        if (random() % 8 == 0) continue;  // its tag was wrong: nothing is remembered
        window.accept(sequence);
        seen.insert(sequence);
        highest = std::max(highest, sequence);
      }
    }
  }
}

void window_at_the_end_of_the_numbers() {
  ReplayWindow window;
  const std::uint64_t last = ~std::uint64_t{0};
  window.accept(last - 1);
  CHECK(window.check(last - 1) == ReplayWindow::Verdict::kReplayed);
  CHECK(window.check(last) == ReplayWindow::Verdict::kFresh);
  window.accept(last);
  CHECK(window.check(last) == ReplayWindow::Verdict::kReplayed);
  CHECK(window.check(1) == ReplayWindow::Verdict::kTooOld);
}

}  // namespace

int main() {
  CHECK(initialise_crypto());
  tags_are_those_of_another_library();
  tags_of_every_length_are_libsodiums();
  every_changed_bit_is_seen();
  no_tags_means_zeros();
  unknown_algorithms_make_no_key();
  window_against_a_set();
  window_at_the_end_of_the_numbers();
}
