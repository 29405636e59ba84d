// A domain whose every datagram, its source and the time are given by hand: the host's protocol, and ducks that answer it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "check.hpp"
#include "domain_protocol.hpp"
#include "toy_duck.hpp"

namespace duckfleet::fabric::test {

using wire::DropReason;

inline constexpr std::uint32_t kHidden = 96;
inline constexpr unsigned kLayers = 2;

inline Endpoint at(unsigned last, unsigned port = 9000) {
  return {0x7F000000U + last, static_cast<std::uint16_t>(port)};
}

struct World {
  SessionConfig session;
  DomainConfig domain;
  std::unique_ptr<DomainProtocol> protocol;
  std::vector<ToyDuck> ducks;
  std::vector<float> x;
  std::vector<wire::Route> routes;
  Request request;
  std::uint64_t now = 1'000'000;
  std::uint32_t step = 0;

  explicit World(std::size_t num_ducks, std::uint32_t fragment_bytes = 128, unsigned first_rank = 0,
                 wire::TagAlgorithm tags = wire::TagAlgorithm::kChaCha20Poly1305) {
    session.session = 77;
    session.generation = 5;
    session.hidden = kHidden;
    session.max_tokens = 4;
    session.tag_algorithm = tags;
    domain.name = "d";
    domain.broadcast = at(255);
    domain.fragment_bytes = fragment_bytes;
    domain.key_id = 1;
    domain.key.fill(9);
    for (std::size_t i = 0; i < num_ducks; ++i) {
      DuckConfig duck;
      duck.rank = static_cast<std::uint16_t>(first_rank + i);
      duck.endpoint = at(static_cast<unsigned>(101 + i));
      duck.key_id = static_cast<std::uint32_t>(10 + i);
      duck.key.fill(static_cast<std::uint8_t>(20 + i));
      domain.ducks.push_back(duck);
      domain.vectors.push_back({static_cast<std::uint16_t>(i), duck.rank, wire::kWholeSlice});
    }
    domain.vectors_of_layer.resize(kLayers);
    for (auto& layer : domain.vectors_of_layer) {
      for (std::size_t i = 0; i < num_ducks; ++i) layer.push_back(static_cast<std::uint16_t>(i));
    }
  }

  void open() {
    protocol = std::make_unique<DomainProtocol>(session, domain);
    for (std::size_t i = 0; i < domain.ducks.size(); ++i) ducks.emplace_back(session, domain, i, domain.fragment_bytes);
  }

  void begin(unsigned lane, unsigned num_tokens = 1, unsigned layer = 0, unsigned top_k = 0) {
    x.resize(std::size_t{num_tokens} * kHidden);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i + step) * 0.25F;
    routes.clear();
    for (unsigned i = 0; i < num_tokens * top_k; ++i) routes.push_back({i % top_k, 0.125F});
    request = {};
    request.step = ++step;
    request.layer = static_cast<std::uint16_t>(layer);
    request.num_tokens = static_cast<std::uint16_t>(num_tokens);
    request.top_k = static_cast<std::uint16_t>(top_k);
    request.routes = std::as_bytes(std::span(routes));
    request.activations = std::as_bytes(std::span(x));
    protocol->begin(lane, request, now);
  }

  std::vector<OutDatagram> due() {
    std::vector<OutDatagram> all;
    sent.clear();
    std::array<OutDatagram, 5> batch;
    for (std::size_t n = 0; (n = protocol->fill(batch, now)) > 0;) {
      for (std::size_t i = 0; i < n; ++i) {
        sent.emplace_back(batch[i].data, batch[i].data + batch[i].bytes);
        all.push_back({nullptr, batch[i].bytes, batch[i].to});
      }
    }
    for (std::size_t i = 0; i < all.size(); ++i) all[i].data = sent[i].data();
    CHECK(!protocol->has_due());
    return all;
  }

  // What the ducks answer to everything that is due; `lose` says which datagrams do not arrive.
  template <class Lose>
  std::deque<std::pair<std::size_t, ToyDuck::Bytes>> exchange(Lose&& lose) {
    std::deque<std::pair<std::size_t, ToyDuck::Bytes>> answers;
    for (const OutDatagram& d : due()) {
      for (std::size_t i = 0; i < ducks.size(); ++i) {
        if (!(d.to == domain.broadcast) && !(d.to == domain.ducks[i].endpoint)) continue;
        if (lose()) continue;
        for (auto& answer : ducks[i].take({d.data, d.bytes})) answers.emplace_back(i, std::move(answer));
      }
    }
    return answers;
  }

  // Let datagrams and time go by until the lane has all its vectors.
  template <class Lose>
  void finish(unsigned lane, Lose&& lose) {
    for (int rounds = 0; !protocol->complete(lane); ++rounds) {
      CHECK(rounds < 500);
      for (auto& [duck, bytes] : exchange(lose)) {
        if (!lose()) deliver(duck, bytes);
      }
      const std::uint64_t next = protocol->next_time_us();
      if (!protocol->complete(lane) && !protocol->has_due()) {
        CHECK(next != UINT64_MAX);
        now = std::max(now, next);
        protocol->on_time(now);
      }
    }
  }

  int deliver(std::size_t duck, ToyDuck::Bytes bytes) { return deliver_from(domain.ducks[duck].endpoint, std::move(bytes)); }

  int deliver_from(Endpoint from, ToyDuck::Bytes bytes, bool truncated = false) {
    return protocol->on_datagram({bytes.data(), static_cast<std::uint32_t>(bytes.size()), from, truncated}, now);
  }

  std::uint64_t drops(DropReason reason) const {
    return protocol->counters().drops[static_cast<std::size_t>(reason)];
  }

  void check_vector(unsigned lane, std::size_t v) {
    const VectorSpec& spec = domain.vectors[v];
    const VectorSlot& slot = protocol->slot(lane, v);
    CHECK(slot.complete());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float weights = 0.125F * static_cast<float>(request.top_k);
      CHECK(slot.data()[i] == toy_value(x[i], spec.slice, spec.part, weights));
    }
  }

  std::deque<ToyDuck::Bytes> sent;
};

}  // namespace duckfleet::fabric::test
