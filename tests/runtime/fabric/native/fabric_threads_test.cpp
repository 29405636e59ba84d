// Fabric with its threads and real sockets on loopback; the ducks are toys behind sockets of their own.
#include "fabric.hpp"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "check.hpp"
#include "toy_duck.hpp"

using namespace duckfleet;
using namespace duckfleet::fabric;
using test::ToyDuck;

namespace {

constexpr std::uint32_t kHidden = 160;

Endpoint at(const char* address, std::uint16_t port) { return {inet_addr(address), htons(port)}; }

int bound_socket(const Endpoint& e, bool shared) {
  const int fd = ::socket(AF_INET, SOCK_DGRAM, 0);
  const int on = 1;
  if (shared) ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = e.address_be;
  a.sin_port = e.port_be;
  CHECK(::bind(fd, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0);
  return fd;
}

std::uint16_t free_port() {
  const int fd = bound_socket(at("127.23.200.1", 0), false);
  sockaddr_in a{};
  socklen_t n = sizeof a;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&a), &n);
  ::close(fd);
  return ntohs(a.sin_port);
}

// A toy duck behind real sockets. `loss` of 256 datagrams are lost, both ways.
class Served {
 public:
  Served(const SessionConfig& session, const DomainConfig& domain, std::size_t index, unsigned loss)
      : duck_(session, domain, index, domain.fragment_bytes),
        loss_(loss),
        random_(static_cast<unsigned>(index) + 1),
        own_(bound_socket(domain.ducks[index].endpoint, false)),
        broadcast_(bound_socket(domain.broadcast, true)),
        thread_([this] { run(); }) {}
  ~Served() {
    stop_ = true;
    thread_.join();
    ::close(own_);
    ::close(broadcast_);
  }

  std::atomic<bool> deaf{false};  // as if unplugged

 private:
  bool lost() { return random_() % 256 < loss_; }

  void run() {
    std::vector<std::byte> buffer(65536);
    while (!stop_) {
      pollfd fds[2] = {{own_, POLLIN, 0}, {broadcast_, POLLIN, 0}};
      ::poll(fds, 2, 20);
      for (const pollfd& p : fds) {
        if ((p.revents & POLLIN) == 0) continue;
        sockaddr_in from{};
        socklen_t length = sizeof from;
        const ssize_t n = ::recvfrom(p.fd, buffer.data(), buffer.size(), 0, reinterpret_cast<sockaddr*>(&from), &length);
        if (n <= 0 || deaf || lost()) continue;
        for (const auto& answer : duck_.take({buffer.data(), static_cast<std::size_t>(n)})) {
          if (lost()) continue;
          ::sendto(own_, answer.data(), answer.size(), 0, reinterpret_cast<const sockaddr*>(&from), length);
        }
      }
    }
  }

  ToyDuck duck_;
  unsigned loss_;
  std::mt19937 random_;
  int own_;
  int broadcast_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

struct Fleet {
  SessionConfig session;
  std::vector<DomainConfig> domains;
  FabricOptions options;
  std::vector<std::unique_ptr<Served>> ducks;
  std::unique_ptr<Fabric> fabric;

  Fleet(std::size_t num_domains, std::size_t ducks_per_domain, std::uint32_t fragment_bytes, unsigned loss,
        std::uint32_t spin_us, std::uint64_t deadline_us = 20'000'000) {
    session.session = 3;
    session.generation = 1;
    session.hidden = kHidden;
    session.max_tokens = 4;
    session.tag_algorithm = wire::TagAlgorithm::kChaCha20Poly1305;
    options.spin_us = spin_us;
    options.deadline_us = deadline_us;
    std::uint16_t rank = 0;
    for (std::size_t d = 0; d < num_domains; ++d) {
      DomainConfig domain;
      domain.name = "d" + std::to_string(d);
      domain.host = at("127.23.200.1", 0);
      const std::uint16_t port = free_port();
      domain.broadcast = at("127.255.255.255", port);
      domain.fragment_bytes = fragment_bytes;
      domain.key_id = 1;
      for (std::size_t i = 0; i < ducks_per_domain; ++i, ++rank) {
        const std::string address = "127.23.20" + std::to_string(d + 1) + "." + std::to_string(101 + i);
        domain.ducks.push_back({rank, at(address.c_str(), port), 10U + rank, {}});
        domain.vectors.push_back({static_cast<std::uint16_t>(i), rank, wire::kWholeSlice});
      }
      domain.vectors_of_layer.resize(3);
      for (std::uint16_t i = 0; i < ducks_per_domain; ++i) {
        domain.vectors_of_layer[0].push_back(i);
        if (d == 0) domain.vectors_of_layer[1].push_back(i);  // layer 1 lives in the first domain only
      }
      domains.push_back(domain);
    }
    for (const auto& domain : domains) {
      for (std::size_t i = 0; i < ducks_per_domain; ++i) {
        ducks.push_back(std::make_unique<Served>(session, domain, i, loss));
      }
    }
    fabric = std::make_unique<Fabric>(session, domains, options);
  }

  [[nodiscard]] std::vector<float> input(unsigned num_tokens, float first) const {
    std::vector<float> x(std::size_t{num_tokens} * kHidden);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = first + 0.1F * static_cast<float>(i);
    return x;
  }

  void check_sum(const std::vector<float>& x, const std::vector<float>& out, unsigned layer) const {
    const std::size_t num_slices = layer == 0 ? ducks.size() : domains[0].ducks.size();
    for (std::size_t i = 0; i < x.size(); ++i) {
      float sum = test::toy_value(x[i], 0, wire::kWholeSlice, 0.0F);
      for (unsigned s = 1; s < num_slices; ++s) sum += test::toy_value(x[i], s, wire::kWholeSlice, 0.0F);
      CHECK(out[i] == sum);
    }
  }

  void submit(unsigned lane, const std::vector<float>& x, unsigned layer = 0) {
    ForwardInput in;
    in.layer = static_cast<std::uint16_t>(layer);
    in.num_tokens = static_cast<std::uint32_t>(x.size() / kHidden);
    in.x = x.data();
    CHECK(fabric->submit(lane, in));
  }

  Outcome wait(unsigned lane, std::vector<float>& out, LossReport* loss = nullptr) {
    Timing timing;
    LossReport ignored;
    return fabric->wait(lane, out.data(), timing, loss != nullptr ? *loss : ignored);
  }

  void forward(unsigned lane, unsigned num_tokens, float first, unsigned layer = 0) {
    const auto x = input(num_tokens, first);
    std::vector<float> out(x.size());
    submit(lane, x, layer);
    CHECK(wait(lane, out) == Outcome::kDone);
    check_sum(x, out, layer);
  }
};

void forwards(std::size_t num_domains, std::uint32_t fragment_bytes, unsigned loss, std::uint32_t spin_us) {
  Fleet fleet(num_domains, 2, fragment_bytes, loss, spin_us);
  for (unsigned i = 0; i < 12; ++i) fleet.forward(i % 2, 1 + i % 11, static_cast<float>(i), i % 2);

  // Two lanes at once, waited for in the other order; the first is longer than one request.
  const auto a = fleet.input(11, 1.0F);
  const auto b = fleet.input(3, 2.0F);
  std::vector<float> out_a(a.size());
  std::vector<float> out_b(b.size());
  fleet.submit(0, a);
  fleet.submit(1, b);
  CHECK(fleet.wait(1, out_b) == Outcome::kDone);
  CHECK(fleet.wait(0, out_a) == Outcome::kDone);
  fleet.check_sum(a, out_a, 0);
  fleet.check_sum(b, out_b, 0);
}

// Each of two threads owns a lane; long batches borrow the other one when it is free.
void two_threads(std::size_t num_domains) {
  Fleet fleet(num_domains, 2, 192, 0, 0);
  std::vector<std::thread> threads;
  for (unsigned lane = 0; lane < 2; ++lane) {
    threads.emplace_back([&, lane] {
      for (unsigned i = 0; i < 30; ++i) fleet.forward(lane, 1 + (i * 5 + lane) % 13, static_cast<float>(i));
    });
  }
  for (auto& t : threads) t.join();
}

void a_lost_duck_is_named(std::size_t num_domains) {
  Fleet fleet(num_domains, 2, 192, 0, 0, 1'500'000);
  fleet.forward(0, 1, 0.0F);
  fleet.ducks.back()->deaf = true;
  const auto x = fleet.input(9, 3.0F);
  std::vector<float> out(x.size());
  LossReport loss;
  fleet.submit(0, x);
  CHECK(fleet.wait(0, out, &loss) == Outcome::kLost);
  CHECK(loss.waited_us >= 1'500'000 && loss.missing.size() == 1);
  CHECK(loss.missing[0].rank == fleet.ducks.size() - 1 && loss.missing[0].heard == Heard::kNothing);
  fleet.ducks.back()->deaf = false;
  fleet.forward(0, 9, 4.0F);
  fleet.forward(1, 2, 5.0F);
}

// The last duck falls silent in the middle of forwards on both lanes: two others compute its slice, a part each, and no
// caller sees more than a longer wait. Then it is back with a new key.
void a_silent_duck_is_replaced(std::size_t num_domains) {
  Fleet fleet(num_domains, 2, 192, 0, 0);
  fleet.forward(0, 1, 0.0F);
  const auto last = static_cast<std::uint16_t>(fleet.ducks.size() - 1);
  std::vector<DomainDuties> whole;
  for (const DomainConfig& d : fleet.domains) whole.push_back({d.vectors, d.vectors_of_layer});
  auto shared = whole;
  DomainDuties& first = shared.front();
  DomainDuties& own = shared.back();
  for (auto& layer : own.vectors_of_layer) std::erase(layer, std::uint16_t{1});
  own.vectors_of_layer[0].push_back(static_cast<std::uint16_t>(own.vectors.size()));
  own.vectors.push_back({0, last, 1});
  for (std::size_t layer = 0; layer < (num_domains == 1 ? 2U : 1U); ++layer) {
    first.vectors_of_layer[layer].push_back(static_cast<std::uint16_t>(first.vectors.size()));
    if (num_domains == 1 && layer == 1) first.vectors_of_layer[1].push_back(static_cast<std::uint16_t>(own.vectors.size() - 1));
  }
  first.vectors.push_back({0, last, 0});

  std::mutex mutex;
  unsigned asked = 0;
  std::atomic<bool> replaced{false};
  fleet.fabric->on_silence([&](const LossReport& loss) {
    const std::lock_guard lock(mutex);
    CHECK(loss.missing.size() == 1 && loss.missing[0].rank == last && loss.missing[0].silent_us >= 50'000);
    if (replaced) return true;
    if (++asked == 1) return false;  // nobody can yet: it goes on waiting, and asks again
    fleet.fabric->set_duties(shared);
    replaced = true;
    return true;
  });
  const auto forward = [&](unsigned lane, unsigned num_tokens, float from) {
    const auto x = fleet.input(num_tokens, from);
    std::vector<float> out(x.size());
    fleet.submit(lane, x);
    CHECK(fleet.wait(lane, out) == Outcome::kDone);
    for (std::size_t i = 0; i < x.size(); ++i) {
      float sum = test::toy_value(x[i], 0, wire::kWholeSlice, 0.0F);
      for (unsigned s = 1; s < last; ++s) sum += test::toy_value(x[i], s, wire::kWholeSlice, 0.0F);
      const float in_parts = test::toy_value(x[i], last, 0, 0.0F) + test::toy_value(x[i], last, 1, 0.0F);
      CHECK(out[i] == sum + in_parts || (!replaced && out[i] == sum + test::toy_value(x[i], last, wire::kWholeSlice, 0.0F)));
    }
  };
  for (unsigned i = 0; i < 20; ++i) forward(0, 1, static_cast<float>(i));  // so that it is known what is usual
  for (unsigned i = 0; i < 20; ++i) forward(1, 9, static_cast<float>(i));
  fleet.ducks.back()->deaf = true;
  std::vector<std::thread> threads;
  for (unsigned lane = 0; lane < 2; ++lane) {
    threads.emplace_back([&, lane] {
      for (unsigned i = 0; i < 8; ++i) forward(lane, lane == 0 ? 9 : 2, static_cast<float>(i));
    });
  }
  for (auto& t : threads) t.join();
  CHECK(replaced && asked == 2 && fleet.fabric->last_pause_us() >= 50'000);

  fleet.ducks.pop_back();
  DomainConfig anew = fleet.domains.back();
  anew.ducks.back().key.fill(99);
  anew.ducks.back().key_id = 4321;
  fleet.ducks.push_back(std::make_unique<Served>(fleet.session, anew, anew.ducks.size() - 1, 0));
  fleet.fabric->rekey(num_domains - 1, anew.ducks.size() - 1, 4321, anew.ducks.back().key);
  fleet.fabric->set_duties(whole);
  for (unsigned i = 0; i < 4; ++i) fleet.forward(i % 2, 2, 7.0F);

  whole.back().vectors_of_layer[0].clear();
  bool refused = false;
  try {
    fleet.fabric->set_duties(whole);
  } catch (const std::invalid_argument&) {
    refused = true;  // nobody would compute a slice of layer 0
  }
  CHECK(refused);
}

void abandoned_and_closed() {
  Fleet fleet(2, 1, 192, 0, 0);
  const auto x = fleet.input(2, 1.0F);
  std::vector<float> out(x.size());
  fleet.submit(0, x);
  fleet.fabric->abandon(0);
  fleet.forward(0, 2, 2.0F);

  fleet.ducks[0]->deaf = true;
  fleet.submit(1, x);
  std::thread closer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    fleet.fabric->close();
  });
  CHECK(fleet.wait(1, out) == Outcome::kClosed);
  closer.join();
  ForwardInput in;
  in.num_tokens = 2;
  in.x = x.data();
  CHECK(!fleet.fabric->submit(0, in));
}

void misuse_is_refused() {
  Fleet fleet(1, 1, 192, 0, 0);
  const auto x = fleet.input(2, 1.0F);
  const auto refused = [&](auto&& change) {
    ForwardInput in;
    in.num_tokens = 1;
    in.x = x.data();
    change(in);
    try {
      fleet.fabric->submit(0, in);
    } catch (const std::exception&) {
      return true;
    }
    return false;
  };
  const std::uint32_t descending[] = {3, 1};
  const float weights[] = {0.5F, 0.5F};
  CHECK(refused([](ForwardInput& in) { in.num_tokens = 0; }));
  CHECK(refused([](ForwardInput& in) { in.layer = 3; }));
  CHECK(refused([](ForwardInput& in) { in.layer = 2; }));  // nobody holds anything of it
  CHECK(refused([&](ForwardInput& in) {
    in.top_k = 2;
    in.experts = descending;
    in.weights = weights;
  }));
  CHECK(!refused([](ForwardInput&) {}));
  CHECK(refused([](ForwardInput&) {}));  // the lane is taken
  std::vector<float> out(kHidden);
  CHECK(fleet.wait(0, out) == Outcome::kDone);
}

}  // namespace

int main() {
  CHECK(wire::initialise_crypto());
  for (const std::size_t num_domains : {1, 3}) {
    for (const std::uint32_t spin_us : {0, 200}) {
      forwards(num_domains, 65408, 0, spin_us);
      forwards(num_domains, 128, 0, spin_us);
    }
    forwards(num_domains, 128, 25, 0);
    two_threads(num_domains);
    a_lost_duck_is_named(num_domains);
    a_silent_duck_is_replaced(num_domains);
  }
  abandoned_and_closed();
  misuse_is_refused();
}
