#include "placement.hpp"

#include <string>
#include <utility>

#include "log.hpp"

namespace duckfleet::duckd {
namespace {

using wire::ErrorCode;
using wire::Refusal;

Refusal stale(const char* what, std::uint32_t theirs, std::uint32_t ours) {
  return {ErrorCode::kStaleGeneration, std::string(what) + " generation " + std::to_string(theirs) +
                                           " is older than " + std::to_string(ours) +
                                           ", which this duck has accepted; use the newer one"};
}

}  // namespace

Placement::Placement(ChunkStore& store, std::function<void(std::shared_ptr<Session>)> install)
    : store_(store), install_(std::move(install)) {}

void Placement::resume() {
  const auto kept = store_.kept_assignment();
  if (!kept) return;
  const std::lock_guard lock(mutex_);
  if (const auto refusal = take(kept->bytes())) {
    log_warn("assignment_not_resumed").with("code", wire::name(refusal->code)).with("reason", refusal->text);
  } else {
    log_info("assignment_resumed").with("rank", state_.shard->assignment().rank).with("chunks", state_.shard->num_chunks());
  }
}

std::optional<Refusal> Placement::take(std::span<const std::byte> payload) {
  Assignment assignment;
  if (auto refusal = parse_assignment(payload, assignment)) return refusal;
  if (assignment.header.generation < state_.plan_generation) {
    return stale("plan", assignment.header.generation, state_.plan_generation);
  }
  Refusal refusal;
  auto shard = Shard::build(assignment, store_, refusal);
  if (!shard) return refusal;
  state_.shard = std::move(shard);
  state_.plan_generation = assignment.header.generation;
  return std::nullopt;
}

std::optional<Refusal> Placement::assign(std::span<const std::byte> payload) {
  const std::lock_guard lock(mutex_);
  const auto before = state_.shard;
  if (auto refusal = take(payload)) return refusal;
  const wire::Assign& now = state_.shard->assignment();
  const bool same = before && before->digest() == state_.shard->digest() &&
                    std::memcmp(&before->assignment().num_layers, &now.num_layers,
                                sizeof now - offsetof(wire::Assign, num_layers)) == 0;
  store_.keep_assignment(payload);
  if (same) {
    state_.shard = before;  // a running session goes on
    return std::nullopt;
  }
  if (session_ && state_.shard->extends(*before)) {
    session_->extend(state_.shard);
  } else {
    install_(nullptr);
    session_ = nullptr;
    state_.session = 0;
  }
  log_info(session_ ? "assignment_extended" : "assigned")
      .with("rank", now.rank)
      .with("tp", now.tp)
      .with("chunks", now.num_chunks)
      .with("generation", now.generation)
      .with("shard", to_hex(state_.shard->digest()));
  return std::nullopt;
}

std::optional<Refusal> Placement::configure(std::span<const std::byte> payload) {
  wire::Configure config;
  if (!wire::take_only(payload, config)) return Refusal{ErrorCode::kMalformed, "session: the wrong length"};
  const std::lock_guard lock(mutex_);
  if (auto refusal = check_session(config, state_.shard.get())) {
    log_warn("identity_mismatch").with("code", wire::name(refusal->code)).with("reason", refusal->text);
    return refusal;
  }
  if (config.generation < state_.generation) return stale("roster", config.generation, state_.generation);
  Refusal refusal;
  auto session = Session::create(config, state_.shard, refusal);
  sodium_memzero(config.domain_key, sizeof config.domain_key);
  sodium_memzero(config.duck_key, sizeof config.duck_key);
  if (!session) return refusal;
  const std::string host = to_text(session->host());
  install_(session);
  session_ = std::move(session);
  state_.session = config.session;
  state_.generation = config.generation;
  LogLine line(LogLevel::kInfo, "session_configured");
  line.with("session", config.session).with("generation", config.generation).with("host", host);
  if (static_cast<wire::TagAlgorithm>(config.tag_algorithm) == wire::TagAlgorithm::kNone) {
    log_warn("datagrams_not_authenticated").with("session", config.session);
  }
  return std::nullopt;
}

bool Placement::uses(const Digest& digest) const {
  const std::lock_guard lock(mutex_);
  return state_.shard && state_.shard->uses(digest);
}

void Placement::release_unless_within(const std::set<Digest>& kept) {
  {
    const std::lock_guard lock(mutex_);
    if (!state_.shard || state_.shard->is_within(kept)) return;
    log_info("assignment_given_up").with("rank", state_.shard->assignment().rank);
  }
  clear();
  store_.forget_assignment();
}

void Placement::clear() {
  const std::lock_guard lock(mutex_);
  install_(nullptr);
  session_ = nullptr;
  state_.shard = nullptr;
  state_.session = 0;
}

Placement::State Placement::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

}  // namespace duckfleet::duckd
