#include "domain_runner.hpp"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "monotonic.hpp"

namespace duckfleet::fabric {
namespace {

constexpr std::uint64_t kLongestSleepUs = 100'000;
// How often a domain's thread looks in where the waiter does the work: often while forwards go on, else seldom.
constexpr std::uint64_t kTickUs = 1'000;
constexpr std::uint64_t kIdleTickUs = 50'000;
constexpr std::uint64_t kIdleAfterUs = 50'000;
// Sealed and handed over at once. Not more: what is sent is on its way while the next is sealed.
constexpr std::size_t kBatchBytes = 16'384;

}  // namespace

DomainRunner::DomainRunner(const SessionConfig& session, const DomainConfig& domain, std::unique_ptr<Link> link,
                           std::uint32_t spin_us, Attendance attendance,
                           std::array<Completion, kNumLanes>& completions)
    : link_(std::move(link)),
      spin_us_(spin_us),
      attendance_(attendance),
      completions_(completions),
      batch_limit_(std::clamp<std::size_t>(kBatchBytes / domain.fragment_bytes, 1, DomainProtocol::kMaxBatch)),
      protocol_(session, domain) {}

DomainRunner::~DomainRunner() { stop(); }

void DomainRunner::start() {
  thread_ = std::thread([this] { attendance_ == Attendance::kWorker ? work() : look_in(); });
  pthread_setname_np(thread_.native_handle(), "fabric");
}

void DomainRunner::stop() {
  stopping_.store(true);
  link_->wake();
  if (thread_.joinable()) thread_.join();
}

void DomainRunner::begin(unsigned lane, const Request& request, std::shared_ptr<const DomainDuties> duties) {
  const std::uint64_t now = now_us();
  {
    const std::lock_guard lock(mutex_);
    protocol_.begin(lane, request, std::move(duties), now);
    if (protocol_.complete(lane)) completions_[lane].domain_done();  // no duck here holds anything of this layer
    if (attendance_ == Attendance::kWaiter) flush_locked(now);
  }
  last_begin_us_.store(now, std::memory_order_relaxed);
  posted_.fetch_add(1);
  if (blocked_.load()) link_->wake();
}

void DomainRunner::end(unsigned lane) {
  const std::lock_guard lock(mutex_);
  protocol_.end(lane);
}

void DomainRunner::report_missing(unsigned lane, std::vector<VectorReport>& out) {
  const std::lock_guard lock(mutex_);
  protocol_.report_missing(lane, now_us(), out);
}

void DomainRunner::report_silent(unsigned lane, std::uint64_t silence_us, std::vector<VectorReport>& out) {
  const std::lock_guard lock(mutex_);
  step_locked();  // what has arrived meanwhile counts
  protocol_.report_silent(lane, now_us(), silence_us, out);
  step_locked();  // who is to be asked is asked now
}

void DomainRunner::make_room(const DomainDuties& duties) {
  const std::lock_guard lock(mutex_);
  protocol_.make_room(duties);
}

void DomainRunner::rekey(std::size_t duck, std::uint32_t key_id, const KeyBytes& key) {
  const std::lock_guard lock(mutex_);
  protocol_.rekey(duck, key_id, key);
}

DomainRunner::Snapshot DomainRunner::snapshot() {
  const std::lock_guard lock(mutex_);
  const auto ducks = protocol_.duck_counters();
  return {protocol_.counters(), link_->counters(), {ducks.begin(), ducks.end()}};
}

bool DomainRunner::step() {
  const std::lock_guard lock(mutex_);
  return step_locked();
}

bool DomainRunner::step_locked() {
  const auto arrived = link_->receive();
  const std::uint64_t now = now_us();
  for (const InDatagram& datagram : arrived) {
    const int lane = protocol_.on_datagram(datagram, now);
    if (lane >= 0) completions_[static_cast<std::size_t>(lane)].domain_done();
  }
  protocol_.on_time(now);
  const bool had_due = protocol_.has_due() || batch_begin_ < batch_end_;
  if (had_due) flush_locked(now);
  return !arrived.empty() || (had_due && batch_begin_ == batch_end_);
}

void DomainRunner::flush_locked(std::uint64_t now) {
  for (;;) {
    if (batch_begin_ == batch_end_) {
      batch_begin_ = 0;
      batch_end_ = protocol_.has_due() ? protocol_.fill(std::span(batch_).first(batch_limit_), now) : 0;
      if (batch_end_ == 0) return;
    }
    const auto due = std::span(batch_).subspan(batch_begin_, batch_end_ - batch_begin_);
    const std::size_t sent = link_->send(due);
    batch_begin_ += sent;
    if (sent < due.size()) return;  // the socket is full
  }
}

std::uint64_t DomainRunner::sleep_us(std::uint64_t until_us) {
  std::uint64_t next = 0;
  {
    const std::lock_guard lock(mutex_);
    next = protocol_.next_time_us();
  }
  const std::uint64_t now = now_us();
  const std::uint64_t wake_at = std::min({next, until_us, now + kLongestSleepUs});
  return wake_at > now ? wake_at - now : 0;
}

void DomainRunner::work() {
  std::uint64_t spin_until = 0;
  std::uint32_t seen = posted_.load() - 1;
  while (!stopping_.load(std::memory_order_relaxed)) {
    const std::uint32_t posted = posted_.load();
    if (posted != seen) {
      seen = posted;
      spin_until = now_us() + spin_us_;
    }
    if (step()) continue;
    if (spin_us_ > 0 && now_us() < spin_until) {
      relax_cpu();
      continue;
    }
    const std::uint64_t timeout = sleep_us(UINT64_MAX);
    bool for_room = false;
    {
      const std::lock_guard lock(mutex_);
      for_room = batch_begin_ < batch_end_;
    }
    blocked_.store(true);
    if (posted_.load() == seen && !stopping_.load()) link_->wait(timeout, for_room);
    blocked_.store(false);
  }
}

void DomainRunner::look_in() {
  while (!stopping_.load(std::memory_order_relaxed)) {
    const bool idle = now_us() - last_begin_us_.load(std::memory_order_relaxed) > kIdleAfterUs;
    if (idle) blocked_.store(true);
    if (!stopping_.load()) link_->sleep(idle ? kIdleTickUs : kTickUs);
    blocked_.store(false);
    if (!attended_.load(std::memory_order_relaxed)) step();
  }
}

bool DomainRunner::attend(std::uint64_t spin_until_us, std::uint64_t until_us) {
  if (attended_.exchange(true)) return false;
  while (!step()) {
    const std::uint64_t now = now_us();
    if (now >= until_us) break;
    if (now < spin_until_us) {
      relax_cpu();
      continue;
    }
    bool for_room = false;
    {
      const std::lock_guard lock(mutex_);
      for_room = batch_begin_ < batch_end_;
    }
    link_->wait(sleep_us(until_us), for_room);
    break;
  }
  attended_.store(false);
  return true;
}

}  // namespace duckfleet::fabric
