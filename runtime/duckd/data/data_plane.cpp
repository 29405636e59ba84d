#include "data_plane.hpp"

#include <immintrin.h>

#include <algorithm>
#include <utility>

#include "log.hpp"

namespace duckfleet::duckd {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

// While a request is computed whose activations are all there, nothing that arrives is urgent.
constexpr microseconds kAttendEvery{200};
// A request that was begun early and whose fragments stopped coming is left after this, and computed when it is whole:
// others may pass, and no thread spins for a host that is gone.
constexpr microseconds kStalledAfter{1000};
constexpr microseconds kLongestIdle{1000};
// Rows of a vector that are sent while others are computed, at least: a sending costs a core as much as several KB on a
// wire of 2.5 Gbit/s. A fragment longer than any Ethernet frame means that there is no wire, and nothing to win.
constexpr std::uint32_t kLeastPieceBytes = 8192;
constexpr std::uint32_t kLongestOnWire = 9216;
constexpr std::uint32_t kEarlyColumns = 128;  // the kernels' step along k

constexpr nanoseconds kLongest = std::chrono::seconds(3600);

}  // namespace

DataPlane::DataPlane(std::unique_ptr<Transport> transport, const kernels::Kernels& kernels, unsigned num_threads,
                     const ThreadPlan& plan, DataCounters& counters)
    : transport_(std::move(transport)), plan_(plan), counters_(counters), outbox_(*transport_, counters),
      echo_tokens_(kEchoBurst), echo_refilled_(Clock::now()), may_start_early_(num_threads == 1 || plan.spin_us > 0) {
  thread_ = std::thread([this, &kernels, num_threads] { run(kernels, num_threads); });
}

DataPlane::~DataPlane() {
  stop_.store(true);
  transport_->wake();
  thread_.join();
}

void DataPlane::install(std::shared_ptr<Session> session) {
  std::unique_lock lock(mutex_);
  installed_.wait(lock, [this] { return !has_to_install_; });  // another connection's turn
  to_install_ = std::move(session);
  has_to_install_ = true;
  transport_->wake();
  installed_.wait(lock, [this] { return !has_to_install_; });
}

void DataPlane::take_installed() {
  if (!has_to_install_.load()) return;
  const std::lock_guard lock(mutex_);
  session_ = std::move(to_install_);  // nobody waits any more for what was asked in the one before
  queue_.clear();
  outbox_.clear();
  has_to_install_ = false;
  installed_.notify_all();
}

void DataPlane::run(const kernels::Kernels& kernels, unsigned num_threads) {
  pin_to(std::span(plan_.cpus).first(std::min<std::size_t>(plan_.cpus.size(), 1)));
  compute_ = std::make_unique<Compute>(kernels, num_threads, plan_, counters_);
  const kernels::IeeeMode ieee;
  last_activity_ = Clock::now();
  while (!stop_.load(std::memory_order_relaxed)) {
    const bool moved = see_to_network();
    take_installed();
    if (compute_next() || moved) continue;
    const auto now = Clock::now();
    if (may_spin(now)) {
      _mm_pause();
    } else {
      transport_->wait(until_next_event(now));
    }
  }
}

bool DataPlane::see_to_network() {
  const auto received = transport_->receive();
  for (const Received& one : received) on_datagram(one);
  const auto now = Clock::now();
  const bool sent = outbox_.send(now);
  nack_late(now);
  log_drops(now);
  if (received.empty() && !sent) return false;
  last_activity_ = now;
  return true;
}

bool DataPlane::may_spin(Clock::time_point now) const { return now - last_activity_ < microseconds(plan_.spin_us); }

nanoseconds DataPlane::until_next_event(Clock::time_point now) const {
  auto at = now + kLongest;
  if (!outbox_.empty()) at = std::min(at, outbox_.next_send());
  if (num_unlogged_ != 0) at = std::min(at, next_drop_log_);
  if (session_) {
    for (const Lane& lane : session_->lanes) {
      for (const Slot& slot : lane.slots) {
        if (slot.state == SlotState::kAssembling && slot.num_nacks < kMaxNacks) at = std::min(at, slot.nack_at);
      }
    }
  }
  return std::max(nanoseconds(0), std::chrono::duration_cast<nanoseconds>(at - now));
}

// ---- computing --------------------------------------------------------------------------------------------------

// A request of which enough is there to begin with.
Slot* DataPlane::early_start() {
  if (!may_start_early_ || !session_) return nullptr;
  for (Lane& lane : session_->lanes) {
    for (Slot& slot : lane.slots) {
      if (slot.state != SlotState::kAssembling || slot.stalled) continue;
      const wire::DataHeader& header = slot.assembly.header();
      if (slot.assembly.columns_ready() < std::min(kEarlyColumns, header.hidden) || !slot.assembly.has_routes()) continue;
      if (routes_ascend(slot.assembly.routes(), header.top_k)) return &slot;
    }
  }
  return nullptr;
}

bool DataPlane::compute_next() {
  Slot* slot = nullptr;
  if (!queue_.empty()) {
    slot = queue_.front();
    queue_.pop_front();
  } else if (slot = early_start(); slot == nullptr) {
    return false;
  }
  running_ = {session_, slot, 0, 0};
  progress_.begin(slot->assembly.header().hidden);
  next_attendance_ = Clock::now() + kAttendEvery;
  bool done = false, has_memory = true;
  try {
    done = compute_->run(*session_, *slot, *this);
  } catch (const std::bad_alloc&) {
    log_error("out_of_memory").with("layer", slot->assembly.header().layer);
    has_memory = false;
  }
  running_ = {};
  last_activity_ = Clock::now();
  if (done && !slot->cancelled) {
    counters_.turnaround.record(static_cast<std::uint64_t>(nanoseconds(last_activity_ - slot->whole_at).count()));
    slot->state = SlotState::kDone;
  } else if (slot->cancelled || !has_memory || slot->state == SlotState::kQueued) {
    // Failed, or the host has moved on meanwhile: nothing is left to be asked for.
    if (slot->cancelled) counters_.cancelled.add();
    slot->state = SlotState::kFree;
  } else {
    slot->stalled = true;  // computed when it is whole
  }
  return true;
}

bool DataPlane::attend(bool idle) noexcept {
  Slot& slot = *running_.slot;
  send_rows(progress_.prefix());
  const auto now = Clock::now();
  if (slot.state == SlotState::kQueued && now < next_attendance_) return true;
  const bool moved = see_to_network();
  next_attendance_ = now + kAttendEvery;
  if (stop_.load(std::memory_order_relaxed) || has_to_install_.load(std::memory_order_relaxed) || slot.cancelled) return false;
  if (slot.state == SlotState::kQueued) return true;
  if (now - slot.fragment_at > kStalledAfter) return false;
  if (idle && !moved && !may_spin(now)) transport_->wait(std::min<nanoseconds>(until_next_event(now), kLongestIdle));
  return true;
}

void DataPlane::rows_final(std::uint32_t row0, std::uint32_t num_rows) noexcept { progress_.mark(row0, num_rows); }

void DataPlane::vector_final() noexcept {
  const std::uint32_t hidden = running_.slot->assembly.header().hidden;
  send_rows(hidden);
  ++running_.vector;
  running_.sent_rows = 0;
  progress_.begin(hidden);
}

// Hands rows of the vector at work to the outbox, of which the first `rows` are final: each time twice of what is left to
// compute, so that a reply is few sendings, and one is on its way for as long as the next is computed.
void DataPlane::send_rows(std::uint32_t rows) {
  Slot& slot = *running_.slot;
  const wire::DataHeader& header = slot.assembly.header();
  const std::uint32_t hidden = header.hidden, sent = running_.sent_rows;
  const bool all = rows == hidden;
  if (!all) {
    if (running_.session->config().reply_fragment_bytes > kLongestOnWire) return;
    if (rows - sent < std::max<std::uint32_t>(2 * (hidden - rows), kLeastPieceBytes / sizeof(float))) return;
    // Fragments begin at whole units, and so must a token's rows.
    if (header.num_tokens > 1 && hidden % (wire::kFragmentUnitBytes / sizeof(float)) != 0) return;
  }
  const auto plan = [&](std::uint32_t begin, std::uint32_t end, bool ends_reply) {
    constexpr auto kBytes = static_cast<std::uint32_t>(sizeof(float));
    outbox_.plan(running_.session, slot, running_.vector, begin * kBytes, end * kBytes, ends_reply);
  };
  if (sent == 0 && all) {
    plan(0, hidden * header.num_tokens, true);
  } else {
    for (std::uint32_t t = 0; t < header.num_tokens; ++t) {
      plan(t * hidden + sent, t * hidden + rows, all && t + 1u == header.num_tokens);
    }
  }
  running_.sent_rows = rows;
  outbox_.send(Clock::now());
}

}  // namespace duckfleet::duckd
