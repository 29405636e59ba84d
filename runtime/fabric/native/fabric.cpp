#include "fabric.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <map>
#include <stdexcept>

#include "activations.hpp"
#include "monotonic.hpp"
#include "parse.hpp"

namespace duckfleet::fabric {
namespace {

// A waiter that cannot attend to the link itself looks for itself at least this often.
constexpr std::uint64_t kLookAgainUs = 5'000;
// How soon a duck that was not silent long enough is looked at again.
constexpr std::uint64_t kSuspectAgainUs = 2'000;

std::size_t size_class(std::uint32_t num_tokens, std::size_t num_classes) {
  return std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(num_tokens)), num_classes) - 1;
}

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

// How many tokens a request may have so that the replies of both lanes fit the receive buffer together. A datagram
// takes about twice its payload there; the buffer's size is as the kernel counts it.
std::uint32_t bounded_tokens(const SessionConfig& session, const DomainConfig& domain, std::size_t buffer_bytes) {
  const std::uint64_t reply_bytes = std::uint64_t{session.hidden} * sizeof(float);
  const std::uint64_t num_vectors = std::max<std::size_t>(domain.vectors.size(), 1);
  const std::uint64_t by_replies = buffer_bytes / (kNumLanes * 2 * num_vectors * reply_bytes);
  const std::uint64_t by_requests = session.max_request_bytes / reply_bytes;
  return static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(std::min(by_replies, by_requests), 1, session.max_tokens));
}

}  // namespace

Fabric::Fabric(const SessionConfig& session, const std::vector<DomainConfig>& domains, const FabricOptions& options)
    : session_(session), options_(options) {
  if (!wire::initialise_crypto()) throw std::runtime_error("libsodium could not start");
  if (domains.empty()) throw std::invalid_argument("a fabric without domains");
  num_layers_ = static_cast<std::uint32_t>(domains[0].vectors_of_layer.size());
  const auto attendance = domains.size() == 1 ? Attendance::kWaiter : Attendance::kWorker;
  std::vector<std::unique_ptr<Link>> links;
  for (const DomainConfig& domain : domains) {
    if (domain.vectors_of_layer.size() != num_layers_) throw std::invalid_argument("domains differ in their layers");
    links.push_back(open_link(options.transport, domain));
    session_.max_tokens = bounded_tokens(session_, domain, links.back()->receive_buffer_bytes());
  }
  for (std::size_t i = 0; i < domains.size(); ++i) {
    runners_.push_back(std::make_unique<DomainRunner>(session_, domains[i], std::move(links[i]), options.spin_us,
                                                      attendance, completions_));
  }
  for (Lane& lane : lanes_) {
    lane.routes.reserve(std::size_t{session_.max_tokens} * wire::kMaxTopK * sizeof(wire::Route));
    if (session_.wire_dtype != wire::WireDtype::kF32) {
      lane.converted.resize(std::size_t{session_.max_tokens} * session_.hidden * 2);
    }
  }
  std::vector<DomainDuties> duties;
  for (const DomainConfig& domain : domains) duties.push_back({domain.vectors, domain.vectors_of_layer});
  set_duties(duties);
  for (auto& runner : runners_) runner->start();
}

Fabric::~Fabric() { close(); }

// The sums' order is settled here, once for each set of duties.
void Fabric::set_duties(const std::vector<DomainDuties>& domains) {
  if (domains.size() != runners_.size()) throw std::invalid_argument("duties of another number of domains");
  auto made = std::make_shared<Duties>();
  for (std::size_t d = 0; d < domains.size(); ++d) {
    if (domains[d].vectors_of_layer.size() != num_layers_) throw std::invalid_argument("duties of another number of layers");
    runners_[d]->make_room(domains[d]);
    made->domains.push_back(std::make_shared<DomainDuties>(domains[d]));
  }
  const auto before = duties();
  for (unsigned l = 0; l < kNumLanes; ++l) {
    made->slices_of_layer[l].resize(num_layers_);
    for (std::uint32_t layer = 0; layer < num_layers_; ++layer) {
      std::map<std::pair<std::uint16_t, std::uint8_t>, const VectorSlot*> ordered;
      for (std::size_t d = 0; d < domains.size(); ++d) {
        for (const std::uint16_t v : domains[d].vectors_of_layer[layer]) {
          const VectorSpec& spec = domains[d].vectors[v];
          if (spec.slice >= wire::kMaxTp) throw std::invalid_argument("a slice beyond the largest tp");
          if (!ordered.emplace(std::pair(spec.slice, spec.part), &runners_[d]->slot(l, v)).second) {
            throw std::invalid_argument("two ducks are to compute the same vector");
          }
        }
      }
      auto& slices = made->slices_of_layer[l][layer];
      std::uint32_t last = UINT32_MAX;
      for (const auto& [key, slot] : ordered) {
        if (key.first != last) {
          slices.emplace_back();
        } else if (key.second == wire::kWholeSlice) {
          throw std::invalid_argument("a slice is to come whole and in parts");
        }
        last = key.first;
        slices.back().vectors.push_back(slot);
      }
      if (before && before->slices_of_layer[l][layer].size() != slices.size()) {
        throw std::invalid_argument("a slice of layer " + std::to_string(layer) + " is left without a duck");
      }
    }
  }
  const std::lock_guard lock(duties_mutex_);
  duties_ = std::move(made);
}

std::shared_ptr<const Fabric::Duties> Fabric::duties() const {
  const std::lock_guard lock(duties_mutex_);
  return duties_;
}

void Fabric::rekey(std::size_t domain, std::size_t duck, std::uint32_t key_id, const KeyBytes& key) {
  runners_.at(domain)->rekey(duck, key_id, key);
}

void Fabric::check(const ForwardInput& in) const {
  if (in.layer >= num_layers_) {
    throw std::invalid_argument("layer " + std::to_string(in.layer) + " of a model with " +
                                std::to_string(num_layers_));
  }
  if (duties()->slices_of_layer[0][in.layer].empty()) {
    throw std::invalid_argument("no duck holds anything of layer " + std::to_string(in.layer));
  }
  if (in.num_tokens == 0) throw std::invalid_argument("a forward of no tokens");
  if (in.top_k > wire::kMaxTopK) throw std::invalid_argument("more experts a token than the wire can name");
  for (std::uint32_t t = 0; t < in.num_tokens; ++t) {
    const std::uint32_t* row = in.experts + std::size_t{t} * in.top_k;
    for (std::uint16_t k = 1; k < in.top_k; ++k) {
      if (row[k] <= row[k - 1]) {
        throw std::invalid_argument("experts of token " + std::to_string(t) + " do not ascend");
      }
    }
  }
}

bool Fabric::submit(unsigned lane_index, const ForwardInput& input) {
  check(input);
  Lane& lane = lanes_[lane_index];
  {
    std::unique_lock lock(lanes_mutex_);
    lane_freed_.wait(lock, [&] { return lane.use != LaneUse::kBorrowed || closed_.load(); });
    if (closed_.load()) return false;
    if (lane.use == LaneUse::kForward) {
      throw std::logic_error("lane " + std::to_string(lane_index) + " has a forward already; wait for it first");
    }
    lane.use = LaneUse::kForward;
  }
  lane.input = input;
  lane.num_launched = 0;
  lane.timing = Timing{};
  launch(lane, lane_index);
  return true;
}

Fabric::Piece Fabric::launch(Lane& forward, unsigned wire_lane) {
  const std::uint64_t begun = now_ns();
  Lane& lane = lanes_[wire_lane];
  const ForwardInput& in = forward.input;
  const Piece piece = {wire_lane, forward.num_launched, std::min(in.num_tokens - forward.num_launched, session_.max_tokens)};
  forward.num_launched += piece.num_tokens;

  const std::size_t num_routes = std::size_t{piece.num_tokens} * in.top_k;
  const std::size_t first_route = std::size_t{piece.first_token} * in.top_k;
  lane.routes.resize(num_routes * sizeof(wire::Route));
  for (std::size_t i = 0; i < num_routes; ++i) {
    const wire::Route route = {in.experts[first_route + i], in.weights[first_route + i]};
    std::memcpy(lane.routes.data() + i * sizeof route, &route, sizeof route);
  }
  const std::span x(in.x + std::size_t{piece.first_token} * session_.hidden,
                    std::size_t{piece.num_tokens} * session_.hidden);
  std::span<const std::byte> activations = std::as_bytes(x);
  if (session_.wire_dtype != wire::WireDtype::kF32) {
    const auto to = std::span(lane.converted).first(x.size() * 2);
    round_activations(x, session_.wire_dtype, to);
    activations = to;
  }
  lane.request = {.step = ++lane.step,
                  .layer = in.layer,
                  .num_tokens = static_cast<std::uint16_t>(piece.num_tokens),
                  .top_k = in.top_k,
                  .routes = lane.routes,
                  .activations = activations};
  const std::uint64_t prepared = now_ns();
  send(wire_lane);
  lane.first_launched_at_us = lane.launched_at_us;
  forward.timing.prepare_ns += prepared - begun;
  forward.timing.send_ns += now_ns() - prepared;
  return piece;
}

// The lane's request, to whoever owes what now.
void Fabric::send(unsigned wire_lane) {
  Lane& lane = lanes_[wire_lane];
  lane.duties = duties();
  const RecentMedian& usual = lane.durations_us[size_class(lane.request.num_tokens, kSizeClasses)];
  lane.silence_us = std::max(options_.silence_floor_us,
                             usual.known() ? options_.silence_medians * usual.get() : options_.silence_cold_us);
  lane.launched_at_us = now_us();
  lane.suspect_at_us = on_silence_ ? lane.launched_at_us + lane.silence_us : UINT64_MAX;
  completions_[wire_lane].arm(static_cast<std::uint32_t>(runners_.size()));
  for (std::size_t d = 0; d < runners_.size(); ++d) runners_[d]->begin(wire_lane, lane.request, lane.duties->domains[d]);
}

// True when the request was sent again because somebody who owes a part of it is silent, and others took that over.
bool Fabric::replaced(unsigned wire_lane) {
  Lane& lane = lanes_[wire_lane];
  // Half of its time is gone: then "I am computing" is no answer either.
  const bool late = now_us() - lane.launched_at_us >= options_.deadline_us / 2;
  LossReport report;
  for (auto& runner : runners_) {
    late ? runner->report_missing(wire_lane, report.missing)
         : runner->report_silent(wire_lane, lane.silence_us, report.missing);
  }
  report.waited_us = now_us() - lane.launched_at_us;
  lane.suspect_at_us = now_us() + std::max(kSuspectAgainUs, lane.silence_us / 16);
  if (report.missing.empty()) return false;
  if (lane.duties == duties() && !on_silence_(report)) {
    lane.suspect_at_us = now_us() + lane.silence_us;  // nobody can: not asked again at once
    return false;
  }
  end_request(wire_lane);
  send(wire_lane);
  return true;
}

void Fabric::finished(Lane& lane) {
  const std::uint64_t now = now_us();
  if (lane.launched_at_us == lane.first_launched_at_us) {
    lane.durations_us[size_class(lane.request.num_tokens, kSizeClasses)].add(now - lane.launched_at_us);
  } else {
    last_pause_us_.store(now - lane.first_launched_at_us, std::memory_order_relaxed);
  }
}

Outcome Fabric::wait(unsigned lane_index, float* out, Timing& timing, LossReport& loss) {
  Lane& lane = lanes_[lane_index];
  const Piece first = {lane_index, 0, lane.num_launched};
  const Outcome outcome = finish_pieces(lane_index, first, out, loss);
  timing = lane.timing;
  release(lane_index);
  return outcome;
}

Outcome Fabric::finish_pieces(unsigned lane_index, Piece first, float* out, LossReport& loss) {
  Lane& forward = lanes_[lane_index];
  const unsigned other = 1 - lane_index;
  std::array<Piece, kNumLanes> under_way = {first, {}};
  std::size_t count = 1;
  const auto tokens_left = [&] { return forward.num_launched < forward.input.num_tokens; };
  bool borrowed = tokens_left() && try_borrow(other);
  if (borrowed) under_way[count++] = launch(forward, other);

  Outcome outcome = Outcome::kDone;
  while (count > 0) {
    const Piece piece = under_way[0];
    if (outcome == Outcome::kDone) outcome = fetch(piece, forward, out, loss);
    end_request(piece.lane);
    under_way[0] = under_way[1];
    --count;
    if (outcome == Outcome::kDone && tokens_left()) under_way[count++] = launch(forward, piece.lane);
  }
  if (borrowed) release(other);
  return outcome;
}

Outcome Fabric::fetch(const Piece& piece, Lane& forward, float* out, LossReport& loss) {
  Lane& lane = lanes_[piece.lane];
  Completion& completion = completions_[piece.lane];
  const std::uint64_t begun_ns = now_ns();
  const std::uint64_t spin_until_us = begun_ns / 1000 + options_.spin_us;
  const auto begin_sum = [&] {
    lane.sum.begin(lane.duties->slices_of_layer[piece.lane][forward.input.layer],
                   out + std::size_t{piece.first_token} * session_.hidden,
                   std::size_t{piece.num_tokens} * session_.hidden);
  };
  begin_sum();
  std::uint64_t complete_ns = 0;
  for (;;) {
    const std::uint32_t turn = completion.turn();
    if (completion.done()) {
      complete_ns = now_ns();
      lane.sum.advance();
      break;
    }
    if (closed_.load(std::memory_order_relaxed)) return Outcome::kClosed;
    lane.sum.advance();
    const std::uint64_t now = now_us();
    if (now >= lane.suspect_at_us && replaced(piece.lane)) {
      begin_sum();
      continue;
    }
    const std::uint64_t deadline_us = lane.launched_at_us + options_.deadline_us;
    const std::uint64_t until_us = std::min(deadline_us, lane.suspect_at_us);
    if (now >= deadline_us) {
      loss.waited_us = now - lane.launched_at_us;
      for (auto& runner : runners_) runner->report_missing(piece.lane, loss.missing);
      if (!loss.missing.empty()) return Outcome::kLost;
      continue;  // the last reply came in just now
    }
    if (runners_.size() == 1 && runners_[0]->attend(spin_until_us, until_us)) continue;
    if (now < spin_until_us) {
      relax_cpu();
    } else {
      const std::uint64_t left_us = until_us - std::min(until_us, now);
      completion.sleep(turn, runners_.size() == 1 ? std::min(kLookAgainUs, left_us) : left_us);
    }
  }
  finished(lane);
  forward.timing.wait_ns += complete_ns - begun_ns;
  forward.timing.fetch_ns += now_ns() - complete_ns;
  return Outcome::kDone;
}

void Fabric::end_request(unsigned wire_lane) {
  for (auto& runner : runners_) runner->end(wire_lane);
  // Another waiter may have left the link to us.
  if (runners_.size() == 1) completions_[1 - wire_lane].notify();
}

bool Fabric::try_borrow(unsigned lane) {
  const std::lock_guard lock(lanes_mutex_);
  if (lanes_[lane].use != LaneUse::kFree) return false;
  lanes_[lane].use = LaneUse::kBorrowed;
  return true;
}

void Fabric::release(unsigned lane) {
  {
    const std::lock_guard lock(lanes_mutex_);
    lanes_[lane].use = LaneUse::kFree;
  }
  lane_freed_.notify_all();
}

void Fabric::abandon(unsigned lane) {
  end_request(lane);
  release(lane);
}

void Fabric::close() {
  if (closed_.exchange(true)) return;
  for (Completion& completion : completions_) completion.notify();
  for (auto& runner : runners_) runner->stop();
  const std::lock_guard lock(lanes_mutex_);
  lane_freed_.notify_all();
}

}  // namespace duckfleet::fabric
