#include "assembly.hpp"

#include <algorithm>
#include <cstring>

namespace duckfleet::duckd {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::uint32_t kUnit = wire::kFragmentUnitBytes;

}  // namespace

bool Assembly::reserve(std::uint32_t hidden, wire::WireDtype dtype) {
  wire::DataHeader largest{};
  largest.num_tokens = wire::kMaxTokens;
  largest.top_k = wire::kMaxTopK;
  largest.hidden = hidden;
  largest.wire_dtype = static_cast<std::uint8_t>(dtype);
  const std::uint64_t bytes = wire::request_bytes(largest);
  auto memory = PageBuffer::anonymous(bytes + kAlignment);
  if (!memory) return false;
  memory_ = std::move(*memory);
  received_.assign((bytes / kUnit + 64) / 64 + 1, 0);
  return true;
}

void Assembly::begin(const wire::DataHeader& header) noexcept {
  header_ = header;
  lead_ = (kAlignment - routes_bytes() % kAlignment) % kAlignment;
  num_units_ = (header.message_bytes + kUnit - 1) / kUnit;
  num_missing_ = num_units_;
  std::fill_n(received_.begin(), (num_units_ + 63) / 64, 0);
  if (header.num_tokens > kMaxTokensFollowed) return;
  for (std::uint32_t t = 0; t < header.num_tokens; ++t) {
    next_unit_[t] = static_cast<std::uint32_t>((routes_bytes() + t * token_bytes()) / kUnit);
  }
}

Assembly::Added Assembly::add(const wire::DataHeader& header, std::span<const std::byte> payload) noexcept {
  if (header.num_tokens != header_.num_tokens || header.top_k != header_.top_k || header.hidden != header_.hidden ||
      header.wire_dtype != header_.wire_dtype || header.message_bytes != header_.message_bytes) {
    return Added::kConflicting;
  }
  const std::uint32_t first = header.offset / kUnit;
  const std::uint32_t end = (header.offset + header.fragment_bytes + kUnit - 1) / kUnit;
  std::uint32_t num_new = 0;
  for (std::uint32_t unit = first; unit < end; ++unit) num_new += !has(unit);
  if (num_new == 0) return Added::kDuplicate;
  if (num_new == end - first) {
    std::memcpy(message() + header.offset, payload.data(), payload.size());
  } else {
    // What is there stays: the first copy of a unit counts.
    for (std::uint32_t unit = first; unit < end; ++unit) {
      if (has(unit)) continue;
      const std::size_t at = std::size_t{unit - first} * kUnit;
      std::memcpy(message() + header.offset + at, payload.data() + at, std::min<std::size_t>(kUnit, payload.size() - at));
    }
  }
  for (std::uint32_t unit = first; unit < end; ++unit) received_[unit / 64] |= std::uint64_t{1} << (unit % 64);
  num_missing_ -= num_new;
  return num_missing_ == 0 ? Added::kComplete : Added::kNew;
}

bool Assembly::has_routes() const noexcept {
  if (complete()) return true;
  for (std::uint32_t unit = 0; unit * kUnit < routes_bytes(); ++unit) {
    if (!has(unit)) return false;
  }
  return true;
}

std::uint32_t Assembly::columns_ready() noexcept {
  if (complete()) return header_.hidden;
  if (header_.num_tokens > kMaxTokensFollowed) return 0;
  const std::size_t element_bytes = token_bytes() / header_.hidden;
  std::uint32_t columns = header_.hidden;
  for (std::uint32_t t = 0; t < header_.num_tokens; ++t) {
    const std::size_t begin = routes_bytes() + t * token_bytes();
    std::uint32_t& next = next_unit_[t];
    while (next < num_units_ && std::size_t{next} * kUnit < begin + token_bytes() && has(next)) ++next;
    const std::size_t end = std::size_t{next} * kUnit;
    const std::size_t ready = end <= begin ? 0 : (end - begin) / element_bytes;
    columns = std::min(columns, static_cast<std::uint32_t>(std::min<std::size_t>(ready, header_.hidden)));
  }
  return columns;
}

std::vector<wire::Range> Assembly::missing() const {
  std::vector<wire::Range> ranges;
  std::uint32_t unit = 0;
  while (unit < num_units_ && ranges.size() < wire::kMaxNackRanges) {
    if (has(unit)) {
      ++unit;
      continue;
    }
    const std::uint32_t first = unit;
    while (unit < num_units_ && !has(unit)) ++unit;
    const std::uint32_t end = std::min(unit * kUnit, header_.message_bytes);
    ranges.push_back({first * kUnit, end - first * kUnit});
  }
  return ranges;
}

std::span<const wire::Route> Assembly::routes() const noexcept {
  return {reinterpret_cast<const wire::Route*>(message()), routes_bytes() / sizeof(wire::Route)};
}

std::span<const std::byte> Assembly::activations() const noexcept {
  return {message() + routes_bytes(), header_.message_bytes - routes_bytes()};
}

bool routes_ascend(std::span<const wire::Route> routes, std::uint32_t top_k) noexcept {
  for (std::size_t i = 1; i < routes.size(); ++i) {
    if (i % top_k != 0 && routes[i].expert <= routes[i - 1].expert) return false;
  }
  return true;
}

}  // namespace duckfleet::duckd
