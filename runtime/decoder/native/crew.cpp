#include "crew.hpp"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>

#include "team.hpp"

namespace duckfleet::host {
namespace {

constexpr int kUnitBits = 24;
constexpr std::uint64_t kUnitMask = (std::uint64_t{1} << kUnitBits) - 1;
// Looks before a spinning thread offers its core to others, each time.
constexpr std::uint32_t kSpins = 2000;

constexpr std::uint32_t next_of(std::uint64_t claim) { return static_cast<std::uint32_t>(claim & kUnitMask); }
constexpr std::uint32_t units_of(std::uint64_t claim) { return static_cast<std::uint32_t>(claim >> kUnitBits & kUnitMask); }
constexpr std::uint16_t number_of(std::uint64_t claim) { return static_cast<std::uint16_t>(claim >> 2 * kUnitBits); }

class Spinner {
 public:
  void pause() noexcept {
    if (++spins_ % kSpins == 0) {
      sched_yield();
    } else {
      _mm_pause();
    }
  }

 private:
  std::uint32_t spins_ = 0;
};

}  // namespace

Crew::Crew(std::uint32_t num_threads) {
  for (std::uint32_t i = 1; i < num_threads; ++i) {
    helpers_.emplace_back([this, i] { help(i); });
    pthread_setname_np(helpers_.back().native_handle(), "host");
  }
}

Crew::~Crew() {
  stop_.store(true);
  wake();
  for (std::thread& helper : helpers_) helper.join();
}

void Crew::wake() noexcept {
  if (helpers_.empty()) return;
  awake_.store(1, std::memory_order_release);
  awake_.notify_all();
}

void Crew::rest() noexcept { awake_.store(0, std::memory_order_release); }

void Crew::run(std::uint32_t num_units, Unit unit, void* context) noexcept {
  ++number_;
  phases_[number_ % 2] = {unit, context};
  done_.store(0, std::memory_order_relaxed);
  claim_.store(std::uint64_t{number_} << 2 * kUnitBits | std::uint64_t{num_units} << kUnitBits, std::memory_order_release);
  while (take(0)) {
  }
  Spinner spinner;
  while (done_.load(std::memory_order_acquire) != num_units) spinner.pause();
}

bool Crew::take(std::uint32_t thread) noexcept {
  const std::uint64_t seen = claim_.load(std::memory_order_relaxed);
  if (next_of(seen) >= units_of(seen)) return false;
  const std::uint64_t claimed = claim_.fetch_add(1, std::memory_order_acquire);
  if (next_of(claimed) >= units_of(claimed)) return false;
  const Phase& phase = phases_[number_of(claimed) % 2];
  phase.unit(phase.context, next_of(claimed), thread);
  done_.fetch_add(1, std::memory_order_release);
  return true;
}

void Crew::help(std::uint32_t thread) noexcept {
  const kernels::IeeeMode mode;
  Spinner spinner;
  while (!stop_.load(std::memory_order_relaxed)) {
    if (take(thread)) {
      spinner = Spinner();
    } else if (awake_.load(std::memory_order_acquire) == 0) {
      awake_.wait(0, std::memory_order_acquire);
    } else {
      spinner.pause();
    }
  }
}

}  // namespace duckfleet::host
