// DomainProtocol in a world of the test's making: every datagram, its source and the time are given by hand.
#include <deque>
#include <random>
#include <vector>

#include "check.hpp"
#include "domain_protocol.hpp"
#include "domain_world.hpp"
#include "toy_duck.hpp"

using namespace duckfleet;
using namespace duckfleet::fabric;
using test::at;
using test::kHidden;
using test::kLayers;
using test::ToyDuck;
using test::World;
using wire::DropReason;

namespace {

constexpr auto kNothing = [] { return false; };

void a_request_comes_back_from_every_duck(std::uint32_t fragment_bytes, wire::TagAlgorithm tags) {
  World w(3, fragment_bytes, 0, tags);
  w.open();
  for (unsigned turn = 0; turn < 4; ++turn) {
    const unsigned lane = turn % 2;
    w.begin(lane, 1 + turn % 3, turn % 2, turn);
    auto answers = w.exchange(kNothing);
    int completed = -1;
    for (auto& [duck, bytes] : answers) {
      CHECK(completed == -1);
      completed = w.deliver(duck, bytes);
    }
    CHECK(completed == static_cast<int>(lane));
    for (std::size_t v = 0; v < 3; ++v) w.check_vector(lane, v);
    CHECK(w.protocol->next_time_us() == UINT64_MAX);
    w.protocol->end(lane);
  }
  for (const auto count : w.protocol->counters().drops) CHECK(count == 0);
}

void lost_datagrams_are_asked_for(unsigned seed) {
  std::mt19937 random(seed);
  World w(3, 64);
  w.open();
  const auto lose = [&] { return random() % 3 == 0; };
  for (unsigned turn = 0; turn < 5; ++turn) {
    w.begin(0, 2, 0, 2);
    w.finish(0, lose);
    for (std::size_t v = 0; v < 3; ++v) w.check_vector(0, v);
    w.protocol->end(0);
  }
}

void asking_backs_off() {
  World w(1);
  w.open();
  w.ducks[0].silent = true;
  w.begin(0);
  w.due();
  std::vector<std::uint64_t> gaps;
  std::uint64_t last = w.now;
  for (int i = 0; i < 9; ++i) {
    w.now = w.protocol->next_time_us();
    gaps.push_back(w.now - last);
    last = w.now;
    w.protocol->on_time(w.now - 1);
    CHECK(w.due().empty());
    w.protocol->on_time(w.now);
    CHECK(w.due().size() == 1);
  }
  CHECK(gaps[0] == w.session.timers.min_probe_us);
  for (std::size_t i = 2; i < gaps.size(); ++i) {
    CHECK(gaps[i] == std::min<std::uint64_t>(2 * gaps[i - 1], w.session.timers.max_probe_us));
  }
  std::vector<VectorReport> report;
  w.protocol->report_missing(0, w.now, report);
  CHECK(report.size() == 1 && report[0].heard == Heard::kNothing && report[0].heard_at_us == 0);
}

void a_duck_that_asks_gets_what_it_lacks() {
  World w(2, 64);
  w.open();
  w.begin(0, 1, 0, 3);
  const auto first = w.due();
  wire::DataHeader h;
  std::memcpy(&h, first[0].data, sizeof h);
  const std::uint32_t total = h.message_bytes;
  CHECK(total == 3 * sizeof(wire::Route) + kHidden * sizeof(float));

  const auto resent = [&](const std::vector<wire::Range>& ranges) {
    w.deliver(1, w.ducks[1].nack(h, ranges));
    std::vector<std::pair<std::uint32_t, std::uint32_t>> got;
    for (const OutDatagram& d : w.due()) {
      CHECK(d.to == w.domain.ducks[1].endpoint);
      wire::DataHeader r;
      std::memcpy(&r, d.data, sizeof r);
      CHECK(r.rank == 1 && r.key_id == 11 && r.slice == wire::kAsAssigned);
      w.ducks[1].take({d.data, d.bytes});  // checks tag and window
      got.emplace_back(std::uint32_t{r.offset}, std::uint32_t{r.fragment_bytes});
    }
    return got;
  };
  using Pieces = std::vector<std::pair<std::uint32_t, std::uint32_t>>;
  CHECK((resent({{64, 128}}) == Pieces{{64, 64}, {128, 64}}));
  CHECK((resent({{70, 2}}) == Pieces{{64, 64}}));
  CHECK((resent({{0, 1}, {384, 1000}}) == Pieces{{0, 64}, {384, total - 384}}));
  CHECK(resent({}).size() == (total + 63) / 64);
  CHECK(resent({{0, wire::kRestOfMessage}}).size() == (total + 63) / 64);
  CHECK(resent({{total, 64}, {0, 0}}).empty());
  CHECK(w.drops(DropReason::kBadLength) == 1);
  std::vector<VectorReport> report;
  w.protocol->report_missing(0, w.now, report);
  CHECK(report.size() == 2 && report[0].heard == Heard::kNothing && report[1].heard == Heard::kAskedAgain);
}

void a_broken_duck_does_not_make_us_send_without_end() {
  World w(2, 64);
  w.open();
  w.begin(0, 1, 0, 3);
  wire::DataHeader h;
  std::memcpy(&h, w.due()[0].data, sizeof h);
  const std::uint32_t total = h.message_bytes;
  const auto resent_bytes = [&](const std::vector<wire::Range>& ranges) {
    w.deliver(1, w.ducks[1].nack(h, ranges));
    std::uint64_t bytes = 0;
    for (auto due = w.due(); !due.empty(); due = w.due()) {
      for (const OutDatagram& d : due) bytes += d.bytes - sizeof(wire::DataHeader);
    }
    return bytes;
  };
  // The same range over and over in one nack, and ranges that overlap: each byte once.
  CHECK(resent_bytes(std::vector<wire::Range>(wire::kMaxNackRanges, wire::Range{0, wire::kRestOfMessage})) == total);
  std::vector<wire::Range> overlapping;
  for (std::uint32_t at = 0; at < total; at += 8) overlapping.push_back({at, 200});
  overlapping.resize(std::min<std::size_t>(overlapping.size(), wire::kMaxNackRanges));
  CHECK(resent_bytes(overlapping) <= total);
  // Nack upon nack: no more than a duck may send for one request.
  std::uint64_t sum = 2 * std::uint64_t{total};
  for (int i = 0; i < 1000; ++i) sum += resent_bytes({{0, wire::kRestOfMessage}});
  CHECK(sum <= 16 * std::uint64_t{total});
  CHECK(w.drops(DropReason::kRateLimited) > 900);
  CHECK(!w.protocol->has_due());
  // Asked by us, it may answer once more; and the next request begins anew.
  w.now = w.protocol->next_time_us();
  w.protocol->on_time(w.now);
  CHECK(!w.due().empty());
  CHECK(resent_bytes({{0, wire::kRestOfMessage}}) == total);
  CHECK(resent_bytes({{0, wire::kRestOfMessage}}) == 0);
  w.begin(0, 1, 0, 3);
  std::memcpy(&h, w.due()[0].data, sizeof h);
  CHECK(resent_bytes({{0, wire::kRestOfMessage}}) == total);
}

void busy_ducks_are_left_alone_for_a_while() {
  World w(1);
  w.open();
  w.begin(0);
  wire::DataHeader h;
  std::memcpy(&h, w.due()[0].data, sizeof h);
  w.now = w.protocol->next_time_us() - 1;
  w.deliver(0, w.ducks[0].busy(h));
  CHECK(w.protocol->next_time_us() >= w.now + w.session.timers.min_probe_us);
  std::vector<VectorReport> report;
  w.protocol->report_missing(0, w.now, report);
  CHECK(report[0].heard == Heard::kBusy && report[0].heard_at_us == w.now);
}

struct Listening : World {
  wire::DataHeader request_header{};

  Listening() : World(2) {
    open();
    begin(0);
    std::memcpy(&request_header, due()[0].data, sizeof request_header);
  }

  std::vector<VectorReport> silent() {
    std::vector<VectorReport> report;
    protocol->report_silent(0, now, 50'000, report);
    return report;
  }

  // Time goes by in which only the second duck says anything.
  void pass(std::uint64_t until) {
    while (now < until) {
      now = std::min(until, std::max(now + 1, protocol->next_time_us()));
      protocol->on_time(now);
      due();
      deliver(1, ducks[1].busy(request_header));
    }
  }
};

// Silent is who was asked several times over the whole span and said nothing; any word of it, "busy" too, begins the span
// anew, and says by how late it came that this duck is a slow one.
void silence_is_what_follows_many_questions() {
  Listening w;
  const std::uint64_t begun = w.now;
  w.pass(begun + 49'000);
  CHECK(w.silent().empty());
  w.pass(begun + 60'000);
  CHECK(w.silent().size() == 1 && w.silent()[0].rank == 0 && w.silent()[0].silent_us == 60'000);
  w.deliver(0, w.ducks[0].busy(w.request_header));
  CHECK(w.silent().empty());
  const std::uint64_t heard = w.now;
  while (w.silent().empty()) w.pass(w.now + 2'000);
  CHECK(w.now > heard + 200'000 && w.now < heard + 260'000);
  w.protocol->end(0);
  CHECK(w.silent().empty());
}

void a_host_that_stood_still_asks_first() {
  Listening w;
  w.now += 60'000;
  CHECK(w.silent().empty());
  const std::uint64_t from = w.now;
  while (w.silent().empty()) w.pass(w.now + 2'000);
  CHECK(w.now < from + 20'000);
}

void what_does_not_belong_is_counted_and_dropped() {
  World w(2);
  w.open();
  w.begin(0);
  auto answers = w.exchange(kNothing);
  const ToyDuck::Bytes good = answers[0].second;
  wire::DataHeader h;
  std::memcpy(&h, good.data(), sizeof h);
  const std::span payload = std::span(good).subspan(sizeof h);
  const auto dropped = [&](DropReason reason, Endpoint from, ToyDuck::Bytes bytes, bool truncated = false) {
    const std::uint64_t before = w.drops(reason);
    CHECK(w.deliver_from(from, std::move(bytes), truncated) == -1);
    CHECK(w.drops(reason) == before + 1);
  };
  const auto changed = [&](auto&& change) {
    wire::DataHeader c = h;
    change(c);
    return w.ducks[0].seal(c, payload);
  };
  const Endpoint home = w.domain.ducks[0].endpoint;
  dropped(DropReason::kForeignAddress, at(200), good);
  dropped(DropReason::kForeignAddress, at(101, 9001), good);
  dropped(DropReason::kTooLong, home, good, true);
  dropped(DropReason::kTooShort, home, ToyDuck::Bytes(sizeof h - 1));
  dropped(DropReason::kBadMagic, home, ToyDuck::Bytes(200));
  dropped(DropReason::kWrongRank, w.domain.ducks[1].endpoint, good);
  dropped(DropReason::kWrongSession, home, changed([](auto& c) { ++c.session; }));
  dropped(DropReason::kStaleGeneration, home, changed([](auto& c) { --c.generation; }));
  dropped(DropReason::kWrongGeneration, home, changed([](auto& c) { ++c.generation; }));
  dropped(DropReason::kStaleStep, home, changed([](auto& c) { --c.step; }));
  dropped(DropReason::kUnknownMessage, home, changed([](auto& c) { ++c.step; }));
  dropped(DropReason::kUnknownMessage, home, changed([](auto& c) { c.slice = 1; }));
  dropped(DropReason::kUnknownMessage, home, changed([](auto& c) { c.part = 0; }));
  dropped(DropReason::kUnknownMessage, home, changed([](auto& c) { c.lane = 1; }));
  dropped(DropReason::kConflicting, home, changed([](auto& c) { c.layer = 1; }));
  dropped(DropReason::kWrongDirection, home, changed([](auto& c) {
            c.kind = static_cast<std::uint8_t>(wire::DataKind::kRequest);
            c.message_bytes = c.hidden * 4;
          }));
  ToyDuck::Bytes bent = good;
  bent.back() ^= std::byte{1};
  dropped(DropReason::kBadTag, home, bent);
  ToyDuck::Bytes other_key = good;
  other_key[offsetof(wire::DataHeader, key_id)] ^= std::byte{1};
  dropped(DropReason::kUnknownKey, home, other_key);
  CHECK(w.protocol->slot(0, 0).received_bytes() == 0);

  // And the good ones still count, once.
  for (auto& [duck, bytes] : answers) w.deliver(duck, bytes);
  CHECK(w.protocol->complete(0));
  for (std::size_t v = 0; v < 2; ++v) w.check_vector(0, v);
  dropped(DropReason::kReplayed, home, good);
  dropped(DropReason::kDuplicateFragment, home, changed([](auto&) {}));
  w.protocol->end(0);
  dropped(DropReason::kStaleStep, home, changed([](auto&) {}));
}

void parts_can_be_computed_by_others(unsigned loss, unsigned seed) {
  std::mt19937 random(seed);
  const auto lose = [&] { return random() % 100 < loss; };
  // Rank 1 is lost: duck 0 computes parts 0 and 2 of its slice, duck 1 (rank 2) part 1.
  World w(2);
  w.domain.ducks[1].rank = 2;
  w.domain.vectors = {{0, 0, wire::kWholeSlice}, {1, 2, wire::kWholeSlice}, {0, 1, 0}, {1, 1, 1}, {0, 1, 2}};
  w.domain.vectors_of_layer = {{0, 1, 2, 3, 4}, {0, 1}};
  w.open();
  for (unsigned turn = 0; turn < 3; ++turn) {
    w.begin(1, 2);
    w.finish(1, lose);
    for (std::size_t v = 0; v < 5; ++v) w.check_vector(1, v);
    w.protocol->end(1);
  }
  w.begin(1, 2, 1);
  w.exchange(kNothing);
  std::vector<VectorReport> report;
  w.protocol->report_missing(1, w.now, report);
  CHECK(report.size() == 2);
}

void mutated_datagrams_never_change_a_vector(unsigned seed, wire::TagAlgorithm tags) {
  std::mt19937 random(seed);
  World w(2, 64, 0, tags);
  w.open();
  for (unsigned turn = 0; turn < 40; ++turn) {
    const unsigned lane = turn % 2;
    w.begin(lane, 1 + turn % 2, 0, turn % 3);
    auto answers = w.exchange(kNothing);
    for (auto& [duck, bytes] : answers) {
      for (int i = 0; i < 20; ++i) {
        ToyDuck::Bytes bent = bytes;
        // Without tags only a header that is refused may be bent: a forged payload cannot be told from a good one.
        const std::size_t reach = tags == wire::TagAlgorithm::kNone ? 16 : bent.size();
        bent[random() % reach] ^= static_cast<std::byte>(1 + random() % 255);
        if (random() % 4 == 0) bent.resize(random() % bent.size());
        w.deliver(duck, std::move(bent));
      }
      w.deliver(duck, bytes);
    }
    CHECK(w.protocol->complete(lane));
    for (std::size_t v = 0; v < 2; ++v) w.check_vector(lane, v);
    w.protocol->end(lane);
  }
}

void a_domain_without_columns_has_nothing_to_wait_for() {
  World w(1);
  w.domain.vectors_of_layer[1].clear();
  w.open();
  w.begin(0, 1, 1);
  CHECK(w.protocol->complete(0) && !w.protocol->has_due() && w.protocol->next_time_us() == UINT64_MAX);
}

}  // namespace

int main() {
  CHECK(wire::initialise_crypto());
  for (const auto tags : {wire::TagAlgorithm::kNone, wire::TagAlgorithm::kChaCha20Poly1305}) {
    for (const std::uint32_t fragment : {64U, 192U, 1344U, 65408U}) a_request_comes_back_from_every_duck(fragment, tags);
    for (unsigned seed = 0; seed < 10; ++seed) mutated_datagrams_never_change_a_vector(seed, tags);
  }
  if (wire::tag_algorithm_available(wire::TagAlgorithm::kAes256Gmac)) {
    a_request_comes_back_from_every_duck(1344, wire::TagAlgorithm::kAes256Gmac);
  }
  for (unsigned seed = 0; seed < 20; ++seed) lost_datagrams_are_asked_for(seed);
  asking_backs_off();
  a_duck_that_asks_gets_what_it_lacks();
  a_broken_duck_does_not_make_us_send_without_end();
  busy_ducks_are_left_alone_for_a_while();
  silence_is_what_follows_many_questions();
  a_host_that_stood_still_asks_first();
  what_does_not_belong_is_counted_and_dropped();
  for (unsigned seed = 0; seed < 20; ++seed) parts_can_be_computed_by_others(seed == 0 ? 0 : 30, seed);
  a_domain_without_columns_has_nothing_to_wait_for();
}
