// A duck for tests: speaks the data plane with the real parser and real tags, computes a toy layer, no sockets.
//
// Its vector for (slice, part) is x * (slice + 1) + (part or 0.5 for a whole slice) + sum of route weights.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <vector>

#include "auth.hpp"
#include "check.hpp"
#include "config.hpp"
#include "parse.hpp"
#include "wire.hpp"

namespace duckfleet::fabric::test {

inline float toy_value(float x, unsigned slice, unsigned part, float weights) {
  const float p = part == wire::kWholeSlice ? 0.5F : static_cast<float>(part);
  return x * (static_cast<float>(slice) + 1.0F) + p + weights;
}

class ToyDuck {
 public:
  using Bytes = std::vector<std::byte>;

  ToyDuck(const SessionConfig& session, const DomainConfig& domain, std::size_t index, std::uint32_t fragment_bytes)
      : session_(session),
        rank_(domain.ducks[index].rank),
        key_id_(domain.ducks[index].key_id),
        domain_key_id_(domain.key_id),
        domain_key_(*wire::DatagramKey::create(session.tag_algorithm, domain.key)),
        key_(*wire::DatagramKey::create(session.tag_algorithm, domain.ducks[index].key)),
        fragment_bytes_(fragment_bytes) {}

  // Takes one datagram; returns what the duck answers.
  std::deque<Bytes> take(std::span<const std::byte> bytes) {
    std::deque<Bytes> out;
    Bytes copy(bytes.begin(), bytes.end());
    const wire::Datagram d = wire::classify(copy);
    if (!d.ok()) return out;
    const auto& h = d.header;
    const bool own = h.key_id == key_id_;
    CHECK(own || h.key_id == domain_key_id_);
    CHECK(h.rank == (own ? rank_ : wire::kAnyRank));
    CHECK((own ? key_ : domain_key_).verify(copy, wire::Direction::kHostToDuck));
    if (session_.tag_algorithm != wire::TagAlgorithm::kNone) {
      CHECK((own ? window_ : domain_window_).check(h.sequence) == wire::ReplayWindow::Verdict::kFresh);
      (own ? window_ : domain_window_).accept(h.sequence);
    }
    if (d.kind() == wire::DataKind::kRequest) on_request(h, d.payload, out);
    if (d.kind() == wire::DataKind::kNackReply) on_nack(h, d.payload, out);
    return out;
  }

  // "I lack these ranges of your request"; none: all of it.
  Bytes nack(const wire::DataHeader& request, const std::vector<wire::Range>& ranges) {
    wire::DataHeader h = request;
    h.kind = static_cast<std::uint8_t>(wire::DataKind::kNackRequest);
    h.message_bytes = h.fragment_bytes = static_cast<std::uint32_t>(ranges.size() * sizeof(wire::Range));
    h.offset = 0;
    return seal(h, std::as_bytes(std::span(ranges)));
  }

  Bytes busy(const wire::DataHeader& request) {
    wire::DataHeader h = request;
    h.kind = static_cast<std::uint8_t>(wire::DataKind::kBusy);
    h.message_bytes = h.fragment_bytes = h.offset = 0;
    return seal(h, {});
  }

  Bytes seal(wire::DataHeader h, std::span<const std::byte> payload) {
    h.rank = rank_;
    h.key_id = key_id_;
    Bytes out(sizeof h + payload.size());
    std::memcpy(out.data(), &h, sizeof h);
    if (!payload.empty()) std::memcpy(out.data() + sizeof h, payload.data(), payload.size());
    key_.seal(out, wire::Direction::kDuckToHost, ++sequence_);
    return out;
  }

  bool silent = false;     // computes nothing, answers nothing
  std::size_t computed = 0;  // requests that came together

 private:
  struct Message {
    Bytes bytes;
    std::vector<char> held;
    bool done = false;
  };
  using Id = std::tuple<std::uint32_t, std::uint8_t, std::uint16_t>;  // step, lane, slice

  using ReplyId = std::tuple<std::uint32_t, std::uint8_t, std::uint16_t, std::uint8_t>;

  // By value: references into packed structs are not to be had.
  static ReplyId reply_id(const wire::DataHeader& h, std::uint16_t slice, std::uint8_t part) {
    return {std::uint32_t{h.step}, std::uint8_t{h.lane}, slice, part};
  }

  void on_request(const wire::DataHeader& h, std::span<const std::byte> payload, std::deque<Bytes>& out) {
    if (silent) return;
    Message& m = messages_[Id(std::uint32_t{h.step}, std::uint8_t{h.lane}, std::uint16_t{h.slice})];
    m.bytes.resize(h.message_bytes);
    m.held.resize(h.message_bytes, 0);
    std::copy(payload.begin(), payload.end(), m.bytes.begin() + h.offset);
    std::fill_n(m.held.begin() + h.offset, payload.size(), 1);
    if (m.done || std::count(m.held.begin(), m.held.end(), 0) != 0) return;
    m.done = true;
    ++computed;
    if (h.slice == wire::kAsAssigned) {
      reply(h, m, rank_, wire::kWholeSlice, out);
    } else {
      CHECK(h.slice != rank_ && h.part != 0xFF);
      for (std::uint8_t part = 0; part < 8; ++part) {
        if ((h.part >> part & 1) != 0) reply(h, m, h.slice, part, out);
      }
    }
  }

  void on_nack(const wire::DataHeader& h, std::span<const std::byte> payload, std::deque<Bytes>& out) {
    if (silent) return;
    const auto kept = replies_.find(reply_id(h, h.slice, h.part));
    if (kept == replies_.end()) {
      out.push_back(nack(h, {{0, wire::kRestOfMessage}}));  // about the vector: it knows no request
      return;
    }
    std::vector<wire::Range> ranges(payload.size() / sizeof(wire::Range));
    if (!payload.empty()) std::memcpy(ranges.data(), payload.data(), payload.size());
    if (ranges.empty()) ranges.push_back({0, std::uint32_t{kept->second.first.message_bytes}});
    for (const auto& r : ranges) send_range(kept->second.first, kept->second.second, r, out);
  }

  void reply(const wire::DataHeader& request, const Message& m, std::uint16_t slice, std::uint8_t part,
             std::deque<Bytes>& out) {
    const std::size_t n = std::size_t{request.num_tokens} * request.hidden;
    const std::size_t routes_bytes = std::size_t{request.num_tokens} * request.top_k * sizeof(wire::Route);
    std::vector<float> y(n);
    for (std::size_t i = 0; i < n; ++i) {
      float x = 0;
      std::memcpy(&x, m.bytes.data() + routes_bytes + i * sizeof x, sizeof x);
      float weights = 0;
      for (std::size_t k = 0; k < request.top_k; ++k) {
        wire::Route route;
        std::memcpy(&route, m.bytes.data() + (i / request.hidden * request.top_k + k) * sizeof route, sizeof route);
        weights += route.weight;
      }
      y[i] = toy_value(x, slice, part, weights);
    }
    wire::DataHeader h = request;
    h.kind = static_cast<std::uint8_t>(wire::DataKind::kReply);
    h.slice = slice;
    h.part = part;
    h.message_bytes = static_cast<std::uint32_t>(n * sizeof(float));
    replies_[reply_id(h, slice, part)] = {h, y};
    send_range(h, y, {0, h.message_bytes}, out);
  }

  void send_range(wire::DataHeader h, const std::vector<float>& y, const wire::Range& r, std::deque<Bytes>& out) {
    const auto bytes = std::as_bytes(std::span(y));
    for (std::uint32_t at = r.offset; at < r.offset + r.bytes; at += fragment_bytes_) {
      h.offset = at;
      h.fragment_bytes = std::min(fragment_bytes_, r.offset + r.bytes - at);
      out.push_back(seal(h, bytes.subspan(at, h.fragment_bytes)));
    }
  }

  SessionConfig session_;
  std::uint16_t rank_;
  std::uint32_t key_id_;
  std::uint32_t domain_key_id_;
  wire::DatagramKey domain_key_;
  wire::DatagramKey key_;
  wire::ReplayWindow window_;
  wire::ReplayWindow domain_window_;
  std::uint32_t fragment_bytes_;
  std::uint64_t sequence_ = 0;
  std::map<Id, Message> messages_;
  std::map<ReplyId, std::pair<wire::DataHeader, std::vector<float>>> replies_;
};

}  // namespace duckfleet::fabric::test
