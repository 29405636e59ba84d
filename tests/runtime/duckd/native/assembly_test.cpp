// Requests put together from fragments cut, shuffled and repeated at random, against a plain copy of the message.
#include "assembly.hpp"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "check.hpp"

namespace {

using namespace duckfleet;
using duckd::Assembly;

struct Message {
  wire::DataHeader header{};
  std::vector<std::byte> bytes;
};

Message random_message(std::mt19937& random, std::uint32_t hidden, wire::WireDtype dtype) {
  Message message;
  message.header.num_tokens = static_cast<std::uint16_t>(1 + random() % wire::kMaxTokens);
  message.header.top_k = static_cast<std::uint16_t>(random() % 9);
  message.header.hidden = hidden;
  message.header.wire_dtype = static_cast<std::uint8_t>(dtype);
  message.bytes.resize(wire::request_bytes(message.header));
  message.header.message_bytes = static_cast<std::uint32_t>(message.bytes.size());
  for (std::byte& byte : message.bytes) byte = static_cast<std::byte>(random());
  return message;
}

wire::DataHeader piece(const Message& message, std::uint32_t offset, std::uint32_t size) {
  wire::DataHeader header = message.header;
  header.offset = offset;
  header.fragment_bytes = std::min(size, header.message_bytes - offset);
  return header;
}

std::span<const std::byte> payload(const Message& message, const wire::DataHeader& header) {
  return std::span(message.bytes).subspan(header.offset, header.fragment_bytes);
}

void check_content(const Assembly& assembly, const Message& message) {
  const std::size_t routes_bytes = std::size_t{message.header.num_tokens} * message.header.top_k * sizeof(wire::Route);
  CHECK(assembly.routes().size_bytes() == routes_bytes);
  CHECK(std::memcmp(assembly.routes().data(), message.bytes.data(), routes_bytes) == 0);
  CHECK(assembly.activations().size() == message.bytes.size() - routes_bytes);
  CHECK(std::memcmp(assembly.activations().data(), message.bytes.data() + routes_bytes,
                    message.bytes.size() - routes_bytes) == 0);
  CHECK(reinterpret_cast<std::uintptr_t>(assembly.activations().data()) % 64 == 0);
}

// What is missing, said by missing(), and sent again in that very cut, makes the message whole.
void lost_and_asked_for(std::mt19937& random, Assembly& assembly, std::uint32_t hidden, wire::WireDtype dtype) {
  const Message message = random_message(random, hidden, dtype);
  const std::uint32_t fragment = 64 * (1 + random() % 24);
  std::vector<std::uint32_t> offsets;
  for (std::uint32_t offset = 0; offset < message.header.message_bytes; offset += fragment) offsets.push_back(offset);
  std::ranges::shuffle(offsets, random);
  assembly.begin(message.header);
  std::size_t sent = 0;
  Assembly::Added last = Assembly::Added::kNew;
  for (const std::uint32_t offset : offsets) {
    if (random() % 4 == 0) continue;  // lost
    const auto header = piece(message, offset, fragment);
    last = assembly.add(header, payload(message, header));
    CHECK(last == Assembly::Added::kNew || last == Assembly::Added::kComplete);
    CHECK(assembly.complete() == (last == Assembly::Added::kComplete));
    ++sent;
    if (!assembly.complete() && random() % 3 == 0) {
      CHECK(assembly.add(header, payload(message, header)) == Assembly::Added::kDuplicate);
    }
  }
  CHECK(assembly.complete() == (sent == offsets.size()));
  while (!assembly.complete()) {
    const auto ranges = assembly.missing();
    CHECK(!ranges.empty() && ranges.size() <= wire::kMaxNackRanges);
    std::uint32_t end = 0;
    for (const wire::Range& range : ranges) {
      CHECK(range.offset >= end && range.offset % 64 == 0 && range.bytes > 0);
      end = range.offset + range.bytes;
      CHECK(end <= message.header.message_bytes);
      // Cut across what is there already: only what is missing may be written.
      Message changed = message;
      std::uint32_t begin = range.offset;
      if (begin >= 64 && random() % 2 == 0) {
        begin -= 64;
        changed.bytes[begin] ^= std::byte{1};
      }
      const auto header = piece(message, begin, end - begin);
      last = assembly.add(header, payload(changed, header));
      CHECK(last == Assembly::Added::kNew || last == Assembly::Added::kComplete);
    }
  }
  CHECK(assembly.missing().empty());
  check_content(assembly, message);
}

// Routes and leading columns that are there, against a look at every byte.
void what_has_come_is_told(std::mt19937& random, Assembly& assembly, std::uint32_t hidden, wire::WireDtype dtype) {
  Message message = random_message(random, hidden, dtype);
  while (message.header.num_tokens > 9) message = random_message(random, hidden, dtype);
  const std::size_t num_tokens = message.header.num_tokens;
  const std::size_t element_bytes = dtype == wire::WireDtype::kF32 ? 4 : 2;
  const std::size_t routes_bytes = num_tokens * message.header.top_k * sizeof(wire::Route);
  const std::uint32_t fragment = 64 * (1 + random() % 8);
  std::vector<std::uint32_t> offsets;
  for (std::uint32_t offset = 0; offset < message.header.message_bytes; offset += fragment) offsets.push_back(offset);
  if (random() % 2 == 0) std::ranges::shuffle(offsets, random);
  std::vector<bool> came(message.bytes.size());
  assembly.begin(message.header);
  for (const std::uint32_t offset : offsets) {
    const auto header = piece(message, offset, fragment);
    assembly.add(header, payload(message, header));
    std::fill_n(came.begin() + header.offset, header.fragment_bytes, true);
    const auto leading = [&](std::size_t begin, std::size_t size) {
      return static_cast<std::size_t>(std::find(came.begin() + static_cast<std::ptrdiff_t>(begin),
                                                came.begin() + static_cast<std::ptrdiff_t>(begin + size), false) -
                                      came.begin()) - begin;
    };
    CHECK(assembly.has_routes() == (leading(0, routes_bytes) == routes_bytes));
    std::size_t columns = hidden;
    for (std::size_t t = 0; t < num_tokens; ++t) {
      const std::size_t token_bytes = hidden * element_bytes;
      columns = std::min(columns, leading(routes_bytes + t * token_bytes, token_bytes) / element_bytes);
    }
    if (num_tokens > Assembly::kMaxTokensFollowed && !assembly.complete()) columns = 0;
    CHECK(assembly.columns_ready() == columns);
  }
}

void other_shapes_conflict() {
  std::mt19937 random(1);
  Assembly assembly;
  CHECK(assembly.reserve(32, wire::WireDtype::kF32));
  Message message = random_message(random, 32, wire::WireDtype::kF32);
  message.header.num_tokens = 4;
  message.header.top_k = 2;
  message.header.message_bytes = static_cast<std::uint32_t>(wire::request_bytes(message.header));
  assembly.begin(message.header);
  const auto header = piece(message, 0, 64);
  for (auto change : {+[](wire::DataHeader& h) { h.num_tokens = 5; }, +[](wire::DataHeader& h) { h.top_k = 1; },
                      +[](wire::DataHeader& h) { h.hidden = 16; }, +[](wire::DataHeader& h) { h.wire_dtype = 1; },
                      +[](wire::DataHeader& h) { h.message_bytes += 64; }}) {
    auto changed = header;
    change(changed);
    CHECK(assembly.add(changed, payload(message, header)) == Assembly::Added::kConflicting);
  }
  CHECK(assembly.add(header, payload(message, header)) == Assembly::Added::kNew);
}

void routes() {
  const auto ascend = [](std::vector<std::uint32_t> experts, std::uint32_t top_k) {
    std::vector<wire::Route> list;
    for (const std::uint32_t expert : experts) list.push_back({expert, 1.0f});
    return duckd::routes_ascend(list, top_k);
  };
  CHECK(ascend({}, 0));
  CHECK(ascend({5, 1}, 1));
  CHECK(ascend({1, 5, 1, 2}, 2));
  CHECK(!ascend({1, 5, 2, 2}, 2));
  CHECK(!ascend({5, 1}, 2));
  CHECK(ascend({0, 0xFFFFFFFF}, 2));
}

}  // namespace

int main() {
  std::mt19937 random(2024);
  for (const wire::WireDtype dtype : {wire::WireDtype::kF32, wire::WireDtype::kF16, wire::WireDtype::kBf16}) {
    for (const std::uint32_t hidden : {1u, 16u, 100u, 576u}) {
      Assembly assembly;
      CHECK(assembly.reserve(hidden, dtype));
      for (int i = 0; i < 40; ++i) lost_and_asked_for(random, assembly, hidden, dtype);
      for (int i = 0; i < 20; ++i) what_has_come_is_told(random, assembly, hidden, dtype);
    }
  }
  other_shapes_conflict();
  routes();
}
