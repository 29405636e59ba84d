// Python's door to the fabric: shapes and types are checked here, everything behind is raw pointers.
#include <arpa/inet.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "fabric.hpp"
#include "link.hpp"
#include "parse.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace duckfleet::fabric {
namespace {

using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const std::uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutMatrix = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

Endpoint endpoint(const std::string& address, std::uint16_t port) {
  in_addr parsed{};
  if (inet_pton(AF_INET, address.c_str(), &parsed) != 1) {
    throw std::invalid_argument("'" + address + "' is not an IPv4 address");
  }
  return {parsed.s_addr, htons(port)};
}

KeyBytes key_bytes(const nb::bytes& key) {
  KeyBytes out{};
  if (key.size() != out.size()) throw std::invalid_argument("a session key has 32 bytes");
  std::copy_n(static_cast<const std::uint8_t*>(key.data()), out.size(), out.begin());
  return out;
}

nb::object drop_counts(const ProtocolCounters& counters) {
  nb::dict drops;
  for (std::size_t i = 1; i < counters.drops.size(); ++i) {
    const std::string_view name = wire::name(static_cast<wire::DropReason>(i));
    drops[nb::str(name.data(), name.size())] = counters.drops[i];
  }
  return drops;
}

nb::dict describe(const DomainRunner::Snapshot& s) {
  nb::dict d;
  d["requests"] = s.protocol.requests;
  d["drops"] = drop_counts(s.protocol);
  d["sent_datagrams"] = s.link.sent_datagrams;
  d["sent_bytes"] = s.link.sent_bytes;
  d["received_datagrams"] = s.link.received_datagrams;
  d["received_bytes"] = s.link.received_bytes;
  d["send_errors"] = s.link.send_errors;
  d["last_send_errno"] = s.link.last_send_errno;
  nb::list ducks;
  for (const DuckCounters& c : s.ducks) {
    nb::dict duck;
    duck["replies"] = c.replies;
    duck["latency_sum_us"] = c.latency_sum_us;
    duck["latency_last_us"] = c.latency_last_us;
    duck["latency_max_us"] = c.latency_max_us;
    duck["times_last"] = c.times_last;
    duck["probes"] = c.probes;
    duck["resends"] = c.resends;
    duck["resent_bytes"] = c.resent_bytes;
    ducks.append(duck);
  }
  d["ducks"] = ducks;
  return d;
}

// A forward under way. Holds the arrays it reads; dropped without wait(), it gives the forward up.
struct Ticket {
  std::shared_ptr<Fabric> fabric;
  unsigned lane = 0;
  unsigned layer = 0;
  std::size_t num_tokens = 0;
  std::size_t hidden = 0;
  Matrix x;
  nb::object experts;
  nb::object weights;
  bool finished = false;

  Ticket() = default;
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;
  ~Ticket() {
    if (!finished && fabric) fabric->abandon(lane);
  }
};

class PyFabric {
 public:
  PyFabric(const SessionConfig& session, const std::vector<DomainConfig>& domains, const FabricOptions& options)
      : hidden_(session.hidden) {
    nb::gil_scoped_release unlocked;
    fabric_ = std::make_shared<Fabric>(session, domains, options);
  }

  // The caller's to delete; nullptr: closed.
  Ticket* submit(std::uint16_t layer, Matrix x, nb::object experts, nb::object weights,
                                 unsigned lane) {
    if (lane >= kNumLanes) throw std::invalid_argument("lane must be 0 or 1");
    if (x.shape(1) != hidden_) {
      throw std::invalid_argument("x has " + std::to_string(x.shape(1)) + " columns, the model's hidden size is " +
                                  std::to_string(hidden_));
    }
    ForwardInput input;
    input.layer = layer;
    input.num_tokens = static_cast<std::uint32_t>(x.shape(0));
    input.x = x.data();
    if (experts.is_none() != weights.is_none()) throw std::invalid_argument("experts and weights go together");
    if (!experts.is_none()) {
      const auto ids = nb::cast<Ids>(experts, false);
      const auto factors = nb::cast<Matrix>(weights, false);
      if (ids.shape(0) != x.shape(0) || factors.shape(0) != x.shape(0) || ids.shape(1) != factors.shape(1)) {
        throw std::invalid_argument("experts and weights must be [num_tokens, top_k]");
      }
      if (ids.shape(1) == 0 || ids.shape(1) > wire::kMaxTopK) {
        throw std::invalid_argument("top_k must be 1 to " + std::to_string(wire::kMaxTopK));
      }
      input.top_k = static_cast<std::uint16_t>(ids.shape(1));
      input.experts = ids.data();
      input.weights = factors.data();
    }
    bool open = false;
    {
      nb::gil_scoped_release unlocked;
      open = fabric_->submit(lane, input);
    }
    if (!open) return nullptr;
    auto ticket = std::make_unique<Ticket>();
    ticket->fabric = fabric_;
    ticket->lane = lane;
    ticket->layer = layer;
    ticket->num_tokens = x.shape(0);
    ticket->hidden = hidden_;
    ticket->x = std::move(x);
    ticket->experts = std::move(experts);
    ticket->weights = std::move(weights);
    return ticket.release();
  }

  // -> (outcome, (prepare_us, send_us, wait_us, fetch_us), (waited_us, missing))
  nb::tuple wait(Ticket& ticket, OutMatrix out) {
    if (ticket.finished) throw std::invalid_argument("this ticket was waited for already");
    if (ticket.fabric != fabric_) throw std::invalid_argument("this ticket is another fabric's");
    if (out.shape(0) != ticket.num_tokens || out.shape(1) != ticket.hidden) {
      throw std::invalid_argument("out must be [num_tokens, hidden] as x was");
    }
    Timing timing;
    LossReport loss;
    Outcome outcome{};
    ticket.finished = true;  // whatever happens: the lane is free afterwards
    {
      nb::gil_scoped_release unlocked;
      outcome = fabric_->wait(ticket.lane, out.data(), timing, loss);
    }
    constexpr double kNsPerUs = 1000.0;
    nb::object report = nb::none();
    if (outcome == Outcome::kLost) report = describe(loss);
    return nb::make_tuple(static_cast<int>(outcome),
                          nb::make_tuple(static_cast<double>(timing.prepare_ns) / kNsPerUs,
                                         static_cast<double>(timing.send_ns) / kNsPerUs,
                                         static_cast<double>(timing.wait_ns) / kNsPerUs,
                                         static_cast<double>(timing.fetch_ns) / kNsPerUs),
                          report);
  }

  nb::list stats() {
    nb::list domains;
    for (std::size_t i = 0; i < fabric_->num_domains(); ++i) domains.append(fabric::describe(fabric_->domain(i).snapshot()));
    return domains;
  }

  std::vector<std::uint16_t> ports() {
    std::vector<std::uint16_t> out;
    for (std::size_t i = 0; i < fabric_->num_domains(); ++i) out.push_back(ntohs(fabric_->domain(i).endpoint().port_be));
    return out;
  }

  std::vector<std::size_t> receive_buffer_bytes() {
    std::vector<std::size_t> out;
    for (std::size_t i = 0; i < fabric_->num_domains(); ++i) out.push_back(fabric_->domain(i).receive_buffer_bytes());
    return out;
  }

  std::uint32_t max_tokens() { return fabric_->max_tokens(); }

  // `handler(waited_us, missing) -> bool`. It must not hold this fabric: nobody would find the cycle.
  void on_silence(nb::callable handler) {
    const std::shared_ptr<nb::callable> held(new nb::callable(std::move(handler)), [](nb::callable* h) {
      nb::gil_scoped_acquire locked;
      delete h;
    });
    fabric_->on_silence([held](const LossReport& loss) {
      nb::gil_scoped_acquire locked;
      try {
        return nb::cast<bool>((*held)(*describe(loss)));
      } catch (nb::python_error& error) {
        error.discard_as_unraisable("the handler of silent ducks");
        return false;
      }
    });
  }

  void set_duties(const std::vector<DomainDuties>& domains) {
    nb::gil_scoped_release unlocked;
    fabric_->set_duties(domains);
  }

  void rekey(std::size_t domain, std::size_t duck, std::uint32_t key_id, const nb::bytes& key) {
    const KeyBytes bytes = key_bytes(key);
    nb::gil_scoped_release unlocked;
    fabric_->rekey(domain, duck, key_id, bytes);
  }

  std::uint64_t last_pause_us() { return fabric_->last_pause_us(); }

  void close() {
    nb::gil_scoped_release unlocked;
    fabric_->close();
  }

 private:
  static nb::tuple describe(const LossReport& loss) {
    nb::list missing;
    for (const VectorReport& v : loss.missing) {
      missing.append(nb::make_tuple(v.rank, v.slice, v.part, static_cast<int>(v.heard), v.received_bytes,
                                    v.message_bytes, v.silent_us));
    }
    return nb::make_tuple(loss.waited_us, missing);
  }

  std::uint32_t hidden_;
  std::shared_ptr<Fabric> fabric_;
};

}  // namespace
}  // namespace duckfleet::fabric

NB_MODULE(_fabric, m) {
  using namespace duckfleet::fabric;
  namespace wire = duckfleet::wire;
  m.doc() = "Native host fabric; use duckfleet.runtime.fabric.";
  nb::exception<LinkError>(m, "LinkError");

  nb::class_<SessionConfig>(m, "SessionConfig")
      .def("__init__",
           [](SessionConfig* self, std::uint64_t session, std::uint32_t generation, std::uint32_t hidden,
              std::uint32_t max_tokens, std::uint32_t max_request_bytes, int wire_dtype, int tag_algorithm, std::uint32_t min_probe_us,
              std::uint32_t max_probe_us, std::uint32_t gap_us) {
             if (hidden == 0 || hidden > wire::kMaxHidden) throw std::invalid_argument("hidden is out of bounds");
             if (max_tokens == 0 || max_tokens > wire::kMaxTokens) {
               throw std::invalid_argument("max_tokens is out of bounds");
             }
             if (wire::element_bytes(static_cast<wire::WireDtype>(wire_dtype)) == 0) {
               throw std::invalid_argument("unknown wire dtype");
             }
             new (self) SessionConfig{.session = session,
                                      .generation = generation,
                                      .hidden = hidden,
                                      .max_tokens = max_tokens,
                                      .max_request_bytes = max_request_bytes,
                                      .wire_dtype = static_cast<wire::WireDtype>(wire_dtype),
                                      .tag_algorithm = static_cast<wire::TagAlgorithm>(tag_algorithm),
                                      .timers = {min_probe_us, max_probe_us, gap_us}};
           },
           nb::kw_only(), "session"_a, "generation"_a, "hidden"_a, "max_tokens"_a, "max_request_bytes"_a, "wire_dtype"_a, "tag_algorithm"_a,
           "min_probe_us"_a, "max_probe_us"_a, "gap_us"_a);

  nb::class_<DuckConfig>(m, "DuckConfig")
      .def("__init__",
           [](DuckConfig* self, std::uint16_t rank, const std::string& address, std::uint16_t port,
              std::uint32_t key_id, const nb::bytes& key) {
             new (self) DuckConfig{rank, endpoint(address, port), key_id, key_bytes(key)};
           },
           nb::kw_only(), "rank"_a, "address"_a, "port"_a, "key_id"_a, "key"_a);

  nb::class_<VectorSpec>(m, "VectorSpec")
      .def("__init__",
           [](VectorSpec* self, std::uint16_t duck, std::uint16_t slice, std::uint8_t part) {
             new (self) VectorSpec{duck, slice, part};
           },
           nb::kw_only(), "duck"_a, "slice"_a, "part"_a);

  nb::class_<DomainConfig>(m, "DomainConfig")
      .def("__init__",
           [](DomainConfig* self, const std::string& name, const std::string& host_address, std::uint16_t host_port,
              const std::string& broadcast, std::uint16_t data_port, std::uint32_t fragment_bytes,
              std::uint32_t key_id, const nb::bytes& key, const std::vector<DuckConfig>& ducks,
              const std::vector<VectorSpec>& vectors,
              const std::vector<std::vector<std::uint16_t>>& vectors_of_layer) {
             new (self) DomainConfig{name,  endpoint(host_address, host_port), endpoint(broadcast, data_port),
                                     fragment_bytes, key_id, key_bytes(key), ducks, vectors, vectors_of_layer};
           },
           nb::kw_only(), "name"_a, "host_address"_a, "host_port"_a, "broadcast"_a, "data_port"_a,
           "fragment_bytes"_a, "key_id"_a, "key"_a, "ducks"_a, "vectors"_a, "vectors_of_layer"_a);

  nb::class_<DomainDuties>(m, "DomainDuties")
      .def("__init__",
           [](DomainDuties* self, const std::vector<VectorSpec>& vectors,
              const std::vector<std::vector<std::uint16_t>>& vectors_of_layer) {
             new (self) DomainDuties{vectors, vectors_of_layer};
           },
           nb::kw_only(), "vectors"_a, "vectors_of_layer"_a);

  nb::class_<Ticket>(m, "Ticket").def_ro("lane", &Ticket::lane).def_ro("layer", &Ticket::layer);

  nb::class_<PyFabric>(m, "Fabric")
      .def("__init__",
           [](PyFabric* self, const SessionConfig& session, const std::vector<DomainConfig>& domains,
              const std::string& transport, std::uint32_t spin_us, std::uint64_t deadline_us,
              std::uint64_t silence_floor_us, std::uint32_t silence_medians, std::uint64_t silence_cold_us) {
             new (self) PyFabric(session, domains,
                                 FabricOptions{transport, spin_us, deadline_us, silence_floor_us, silence_medians,
                                               silence_cold_us});
           },
           nb::kw_only(), "session"_a, "domains"_a, "transport"_a, "spin_us"_a, "deadline_us"_a,
           "silence_floor_us"_a, "silence_medians"_a, "silence_cold_us"_a)
      .def("on_silence", &PyFabric::on_silence, "handler"_a)
      .def("set_duties", &PyFabric::set_duties, "domains"_a)
      .def("rekey", &PyFabric::rekey, "domain"_a, "duck"_a, "key_id"_a, "key"_a)
      .def("last_pause_us", &PyFabric::last_pause_us)
      .def("submit", &PyFabric::submit, "layer"_a, "x"_a.noconvert(), "experts"_a.none(), "weights"_a.none(), "lane"_a,
           nb::rv_policy::take_ownership)
      .def("wait", &PyFabric::wait, "ticket"_a, "out"_a.noconvert())
      .def("stats", &PyFabric::stats)
      .def("ports", &PyFabric::ports)
      .def("max_tokens", &PyFabric::max_tokens)
      .def("receive_buffer_bytes", &PyFabric::receive_buffer_bytes)
      .def("close", &PyFabric::close);

  m.def("transports", [] {
    std::vector<std::string> names;
    for (const LinkKind& kind : link_kinds()) names.emplace_back(kind.name);
    return names;
  });
  m.def("available_tag_algorithms", [] {
    wire::initialise_crypto();
    return static_cast<int>(wire::available_tag_algorithms());
  });
}
