#include "checksum.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace duckfleet::duckd {
namespace {

constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15ull;

std::uint64_t step(std::uint64_t chain, const std::byte* from, std::size_t count) noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, from, count);
  return std::rotl((chain ^ word) * kOdd, 29);
}

}  // namespace

Checksum::Checksum() noexcept {
  for (std::size_t i = 0; i < chains_.size(); ++i) chains_[i] = kOdd * (i + 1);
}

void Checksum::update(std::span<const std::byte> bytes) noexcept {
  auto chains = chains_;  // in registers
  std::size_t at = 0;
  for (; at + kBlockBytes <= bytes.size(); at += kBlockBytes) {
    for (std::size_t i = 0; i < chains.size(); ++i) chains[i] = step(chains[i], bytes.data() + at + 8 * i, 8);
  }
  for (std::size_t i = 0; at < bytes.size(); at += 8, ++i) {
    chains[i] = step(chains[i], bytes.data() + at, std::min<std::size_t>(8, bytes.size() - at));
  }
  chains_ = chains;
  size_ += bytes.size();
}

std::uint64_t Checksum::finish() const noexcept {
  std::uint64_t sum = size_;
  for (const std::uint64_t chain : chains_) sum = std::rotl((sum ^ chain) * kOdd, 31);
  return sum;
}

}  // namespace duckfleet::duckd
