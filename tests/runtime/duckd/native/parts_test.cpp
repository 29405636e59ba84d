// The small pure parts: widening, histogram, thread plan, key and option parsing, SMBIOS, tickets and their handshake.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "activations.hpp"
#include "affinity.hpp"
#include "check.hpp"
#include "counters.hpp"
#include "digest.hpp"
#include "handshake.hpp"
#include "offers.hpp"
#include "options.hpp"
#include "pattern_test.hpp"
#include "smbios.hpp"

namespace {

using namespace duckfleet;
using namespace duckfleet::duckd;

// All 65536 halves by their definition (IEEE 754-2019, 3.4).
void every_half_is_widened() {
  std::vector<std::uint16_t> bits(65536);
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint16_t>(i);
  std::vector<float> out(bits.size());
  widen(wire::WireDtype::kF16, std::as_bytes(std::span(bits)), out);
  for (std::uint32_t i = 0; i < bits.size(); ++i) {
    const int exponent = static_cast<int>(i >> 10 & 31);
    const double mantissa = i & 1023;
    const double sign = i & 0x8000 ? -1 : 1;
    if (exponent == 31) {
      CHECK(mantissa == 0 ? std::isinf(out[i]) && (out[i] < 0) == (sign < 0) : std::isnan(out[i]));
      continue;
    }
    const double value = sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
    CHECK(static_cast<double>(out[i]) == value && std::signbit(out[i]) == (sign < 0));
  }
  widen(wire::WireDtype::kBf16, std::as_bytes(std::span(bits)), out);
  for (std::uint32_t i = 0; i < bits.size(); ++i) CHECK(std::bit_cast<std::uint32_t>(out[i]) == i << 16);
}

void quantiles_are_close() {
  Histogram histogram;
  CHECK(histogram.quantile_ns(0.5) == 0);
  std::mt19937_64 random(3);
  std::vector<std::uint64_t> values;
  for (int i = 0; i < 20000; ++i) {
    values.push_back(random() >> (random() % 64));
    histogram.record(values.back());
  }
  std::ranges::sort(values);
  for (const double q : {0.0, 0.1, 0.5, 0.9, 0.99}) {
    const auto exact = static_cast<double>(values[static_cast<std::size_t>(q * static_cast<double>(values.size()))]);
    const auto estimate = static_cast<double>(histogram.quantile_ns(q));
    CHECK(estimate <= exact && estimate >= exact * 15 / 16 - 1);
  }
  CHECK(histogram.max_ns() == values.back());
}

void never_more_spinning_threads_than_cores() {
  for (unsigned num_cores = 1; num_cores <= 6; ++num_cores) {
    std::vector<int> cpus;
    for (unsigned i = 0; i < num_cores; ++i) cpus.push_back(static_cast<int>(10 + i));
    for (unsigned num_threads = 1; num_threads <= 8; ++num_threads) {
      for (const bool pinned : {false, true}) {
        const ThreadPlan plan = plan_threads(num_threads, pinned ? std::span<const int>(cpus) : std::span<const int>(), num_cores, 50);
        CHECK((plan.spin_us == 0 ? 0 : num_threads) <= num_cores);
        CHECK((plan.spin_us == 50) == (num_cores >= num_threads));
        CHECK(plan.cpus.size() == (pinned ? num_threads : 0));
      }
    }
  }
}

void cpu_lists() {
  const auto parse = [](std::string list) {
    std::string name = "--cpus", auth = "--no-auth", program = "duckd";
    char* arguments[] = {program.data(), auth.data(), name.data(), list.data()};
    Options options;
    const std::string error = parse_options(4, arguments, options);
    return error.empty() ? options.cpus : std::vector<int>{-1};
  };
  CHECK((parse("0-3,6") == std::vector<int>{0, 1, 2, 3, 6}));
  CHECK((parse("2,0") == std::vector<int>{2, 0}));
  for (const char* bad : {"", ",", "1,", "3-1", "-1", "a", "0-", "99999", "1 2"}) CHECK(parse(bad) == std::vector<int>{-1});
}

void digests_in_hex() {
  const std::string hex(64, 'a');
  CHECK(to_hex(*digest_from_hex(hex)) == hex);
  for (const std::string& bad : {std::string(), std::string(63, 'a'), std::string(65, 'a'), std::string(64, 'g'), "a " + std::string(62, 'a')}) {
    CHECK(!digest_from_hex(bad));
  }
}

std::vector<std::byte> structure(std::uint8_t type, std::vector<std::uint8_t> fields, const std::vector<std::string>& strings) {
  std::vector<std::uint8_t> bytes = {type, static_cast<std::uint8_t>(4 + fields.size()), 0, 0};
  bytes.insert(bytes.end(), fields.begin(), fields.end());
  for (const std::string& text : strings) {
    bytes.insert(bytes.end(), text.begin(), text.end());
    bytes.push_back(0);
  }
  if (strings.empty()) bytes.push_back(0);
  bytes.push_back(0);
  const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
  return {data, data + bytes.size()};
}

// A memory device of specification 2.8: 34 bytes and more after the header's 4.
std::vector<std::uint8_t> device(std::uint16_t size, std::uint32_t extended = 0) {
  std::vector<std::uint8_t> fields(0x24, 0);
  const auto put = [&](std::size_t offset, std::uint64_t value, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) fields[offset - 4 + i] = static_cast<std::uint8_t>(value >> (8 * i));
  };
  put(0x0C, size, 2);
  put(0x10, 1, 1);
  put(0x11, 2, 1);
  put(0x12, 26, 1);
  put(0x15, 3200, 2);
  put(0x17, 3, 1);
  put(0x1C, extended, 4);
  put(0x20, 2933, 2);
  return fields;
}

void memory_modules() {
  std::vector<std::byte> table;
  const auto add = [&](const std::vector<std::byte>& more) { table.insert(table.end(), more.begin(), more.end()); };
  add(structure(0, {1, 2, 3}, {"vendor", "version"}));
  add(structure(17, device(16384), {"DIMM 0", "BANK 0", "Acme  "}));
  add(structure(17, device(0x7FFF, 32768), {"DIMM 1", "BANK 1"}));
  add(structure(17, device(0), {"DIMM 2"}));
  add(structure(17, device(0xFFFF), {}));
  add(structure(17, device(0x8000 | 512), {}));
  add(structure(17, {0, 0}, {}));  // of an old specification, cut short
  add(structure(127, {}, {}));
  add(structure(17, device(1), {}));  // after the end
  const auto modules = probe::parse_memory_modules(table);
  CHECK(modules.size() == 6);
  CHECK(modules[0].size_bytes == 16384ull << 20 && modules[0].locator == "DIMM 0" && modules[0].bank == "BANK 0");
  CHECK(modules[0].manufacturer == "Acme" && modules[0].type == 26);
  CHECK(modules[0].speed_mt_per_s == 3200u && modules[0].configured_mt_per_s == 2933u);
  CHECK(modules[1].size_bytes == 32768ull << 20 && modules[1].manufacturer.empty());
  CHECK(modules[2].size_bytes == 0u);
  CHECK(!modules[3].size_bytes && modules[3].locator.empty());
  CHECK(modules[4].size_bytes == 512ull << 10);
  CHECK(!modules[5].size_bytes);
  for (std::size_t size = 0; size < table.size(); ++size) {  // cut anywhere: no more than what is whole
    CHECK(probe::parse_memory_modules(std::span(table).first(size)).size() <= modules.size());
  }
}

// Damages one word after each pattern was written: a cell that does not hold its bit.
struct Damage {
  std::size_t index;
  std::uint64_t stuck_at_one;

  void operator()(std::span<std::uint64_t> words) const { words[index] |= stuck_at_one; }
};

void patterns_find_what_does_not_hold() {
  std::vector<std::uint64_t> memory(40000);
  const std::span<std::uint64_t> words(memory);
  const auto later = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  const auto good = probe::test_patterns(words, later);
  CHECK(good.num_errors == 0 && good.errors.empty());
  CHECK(good.tested_bytes == words.size_bytes() && good.patterns.size() == 4);
  for (const std::size_t index : {std::size_t{0}, std::size_t{12345}, words.size() - 1}) {
    for (const unsigned bit : {0u, 17u, 63u}) {
      const std::uint64_t stuck = std::uint64_t{1} << bit;
      const auto bad = probe::test_patterns(words, later, Damage{index, stuck});
      CHECK(bad.num_errors != 0 && bad.errors.size() == bad.num_errors);
      for (const auto& wrong : bad.errors) {
        CHECK(wrong.address == &words[index] && (wrong.expected ^ wrong.got) == stuck);
      }
    }
  }
  // An address line that is not connected: two halves are the same cells.
  const auto mirrored = probe::test_patterns(words, later, [](std::span<std::uint64_t> all) {
    for (std::size_t i = 0; i < all.size() / 2; ++i) all[i] = all[i + all.size() / 2];
  });
  CHECK(mirrored.num_errors > 10000 && mirrored.errors.size() == probe::kMaxListed);
  const auto late = probe::test_patterns(words, std::chrono::steady_clock::now());
  CHECK(late.tested_bytes == 0 && late.patterns.empty());
}

wire::ChunkOffer an_offer(std::uint64_t ticket, std::uint32_t lifetime_s) {
  wire::ChunkOffer offer{};
  offer.ticket = ticket;
  offer.secret[3] = offer.digest[5] = static_cast<std::uint8_t>(ticket);
  offer.lifetime_s = lifetime_s;
  return offer;
}

void tickets_are_good_once_and_for_a_while() {
  Offers offers;
  const Offers::Clock::time_point now{};
  CHECK(!offers.add(wire::bytes_of(an_offer(1, 10)), now));
  CHECK(offers.add(wire::bytes_of(an_offer(1, 10)), now));  // not the same ticket for two
  CHECK(!offers.secret(2, now) && !offers.take(2, now));
  CHECK(offers.secret(1, now) && (*offers.secret(1, now))[3] == 1);
  CHECK(!offers.secret(1, now + std::chrono::seconds(10)) && !offers.take(1, now + std::chrono::seconds(10)));
  const auto digest = offers.take(1, now + std::chrono::seconds(9));
  CHECK(digest && (*digest)[5] == 1);
  CHECK(!offers.secret(1, now) && !offers.take(1, now));

  for (std::uint64_t i = 0; i < wire::kMaxOffers; ++i) CHECK(!offers.add(wire::bytes_of(an_offer(i, 5)), now));
  CHECK(offers.add(wire::bytes_of(an_offer(999, 5)), now));
  CHECK(!offers.add(wire::bytes_of(an_offer(999, 5)), now + std::chrono::seconds(6)));  // those have ended
  CHECK(offers.add(wire::bytes_of(an_offer(2, 0)), now) && offers.add(wire::bytes_of(an_offer(2, 3601)), now));
}

void two_ducks_with_a_ticket_agree() {
  wire::TicketSecret secret{};
  secret.fill(7);
  wire::PeerCall call(42, secret);
  constexpr std::size_t kFrameBytes = sizeof(wire::ControlHeader) + sizeof(wire::PeerHello);
  const std::span<const std::byte> hello(call.hello_frame());
  CHECK(hello.size() == kFrameBytes);
  auto answering = wire::DuckHandshake::accept_peer(secret, hello.first<kFrameBytes>());
  CHECK(answering.has_value());
  std::vector<std::byte> first_bytes;
  auto caller = call.finish(answering->reply(), first_bytes);
  CHECK(caller && first_bytes.size() == 4 + wire::kStreamHeaderBytes);
  auto answerer = answering->finish(std::span(first_bytes).subspan(4));
  CHECK(answerer.has_value());
  const std::vector<std::byte> frame(100, std::byte{9});
  const std::vector<std::byte> there = caller->seal(frame), back = answerer->seal(frame);
  std::vector<std::byte> opened;
  CHECK(answerer->open(std::span(there).subspan(4), opened) && opened == frame);
  CHECK(caller->open(std::span(back).subspan(4), opened) && opened == frame);

  secret[31] ^= 1;  // a duck with another secret is no duck of this ticket
  const auto stranger = wire::DuckHandshake::accept_peer(secret, hello.first<kFrameBytes>());
  CHECK(stranger && !call.finish(stranger->reply(), first_bytes));
  wire::HelloReply low_order = answering->reply();
  std::memset(low_order.ephemeral, 0, sizeof low_order.ephemeral);
  CHECK(!call.finish(low_order, first_bytes));
}

}  // namespace

int main() {
  every_half_is_widened();
  quantiles_are_close();
  never_more_spinning_threads_than_cores();
  cpu_lists();
  digests_in_hex();
  memory_modules();
  patterns_find_what_does_not_hold();
  tickets_are_good_once_and_for_a_while();
  two_ducks_with_a_ticket_agree();
}
