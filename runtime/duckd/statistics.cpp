#include "statistics.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace duckfleet::duckd {
namespace {

using Json = nlohmann::ordered_json;

Json histogram(const Histogram& h) {
  const auto us = [](std::uint64_t ns) { return static_cast<double>(ns) / 1000; };
  return {{"count", h.count()},          {"total_us", us(h.total_ns())},      {"p50_us", us(h.quantile_ns(0.5))},
          {"p90_us", us(h.quantile_ns(0.9))}, {"p99_us", us(h.quantile_ns(0.99))}, {"max_us", us(h.max_ns())}};
}

Json drops(const DataCounters& counters) {
  Json values = Json::object();
  for (std::size_t i = 1; i < wire::kNumDropReasons; ++i) {
    values[std::string(wire::name(static_cast<wire::DropReason>(i)))] = counters.drops[i].get();
  }
  return values;
}

Json data(const DataCounters& c, const Transport& transport) {
  return {{"datagrams", c.datagrams.get()},
          {"bytes_in", c.bytes_in.get()},
          {"datagrams_sent", c.datagrams_sent.get()},
          {"bytes_sent", c.bytes_sent.get()},
          {"send_failures", c.send_failures.get()},
          {"overrun", transport.num_overrun()},
          {"receive_buffer_bytes", transport.receive_buffer_bytes()},
          {"requests", c.requests.get()},
          {"computed", c.computed.get()},
          {"cancelled", c.cancelled.get()},
          {"replies", c.replies.get()},
          {"resends", c.resends.get()},
          {"nacks_sent", c.nacks_sent.get()},
          {"nacks_received", c.nacks_received.get()},
          {"busy_sent", c.busy_sent.get()},
          {"echoes", c.echoes.get()},
          {"weight_bytes", c.weight_bytes.get()},
          {"compute", histogram(c.compute)},
          {"turnaround", histogram(c.turnaround)},
          {"drops", drops(c)}};
}

Json control(const ControlCounters& c) {
  return {{"connections", c.connections.get()},
          {"closed", c.closed.get()},
          {"evicted", c.evicted.get()},
          {"refused", c.refused.get()},
          {"timeouts", c.timeouts.get()},
          {"malformed", c.malformed.get()},
          {"wrong_version", c.wrong_version.get()},
          {"auth_failed", c.auth_failed.get()},
          {"auth_missing", c.auth_missing.get()},
          {"unknown_type", c.unknown_type.get()},
          {"requests", c.requests.get()},
          {"refusals", c.refusals.get()},
          {"chunks_stored", c.chunks_stored.get()},
          {"chunks_refused", c.chunks_refused.get()},
          {"chunks_fetched", c.chunks_fetched.get()},
          {"chunks_given", c.chunks_given.get()},
          {"chunk_bytes_received", c.chunk_bytes_received.get()}};
}

Json scrub(const ScrubCounters& c, const ChunkStore& store) {
  constexpr std::size_t kNamed = 64;  // so that the answer is bounded
  const auto damaged = store.damaged();
  Json names = Json::array();
  for (std::size_t i = 0; i < std::min(damaged.size(), kNamed); ++i) names.push_back(to_hex(damaged[i]));
  return {{"bytes", c.bytes.get()},
          {"chunks", c.chunks.get()},
          {"passes", c.passes.get()},
          {"found", c.found.get()},
          {"damaged", damaged.size()},
          {"damaged_chunks", names},
          {"mended", store.totals().num_mends}};
}

}  // namespace

std::string statistics_json(const StatisticsSource& source) {
  const auto held = source.store.totals();
  const auto state = source.placement.state();
  const Json json = {{"uptime_s", source.uptime_s},
                     {"session", state.session},
                     {"generation", state.generation},
                     {"plan_generation", state.plan_generation},
                     {"num_chunks", held.num_chunks},
                     {"held_bytes", held.packed_bytes},
                     {"data", data(source.counters.data, source.transport)},
                     {"control", control(source.counters.control)},
                     {"scrub", scrub(source.counters.scrub, source.store)}};
  return json.dump();
}

}  // namespace duckfleet::duckd
