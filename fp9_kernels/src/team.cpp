#include "team.hpp"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>

#include <chrono>

namespace duckfleet::kernels {
namespace {

constexpr std::uint32_t kMxcsrDefault = 0x1F80;  // all exceptions masked, round to nearest, no FTZ, no DAZ

// Waits until `value` is no longer `old`: spins, then blocks in the kernel.
void wait_change(const std::atomic<std::uint32_t>& value, std::uint32_t old, std::uint32_t spin_us) noexcept {
  constexpr int kChecksPerClock = 64;
  for (int i = 0; i < kChecksPerClock; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    _mm_pause();
  }
  const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(spin_us);
  do {
    for (int i = 0; i < kChecksPerClock; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      _mm_pause();
    }
  } while (std::chrono::steady_clock::now() < until);
  while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

}  // namespace

IeeeMode::IeeeMode() noexcept : before_(_mm_getcsr()) { _mm_setcsr(kMxcsrDefault); }
IeeeMode::~IeeeMode() { _mm_setcsr(before_); }

Team::Team(std::uint32_t num_threads, std::span<const int> cpus, std::uint32_t spin_us)
    : num_threads_(num_threads == 0 ? 1 : num_threads), spin_us_(spin_us) {
  threads_.reserve(num_threads_ - 1);
  for (std::uint32_t i = 1; i < num_threads_; ++i) {
    threads_.emplace_back([this, i] { work(i); });
    if (i < cpus.size() && cpus[i] >= 0 && cpus[i] < CPU_SETSIZE) {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(static_cast<std::size_t>(cpus[i]), &set);
      pthread_setaffinity_np(threads_.back().native_handle(), sizeof set, &set);
    }
  }
}

Team::~Team() {
  stop_.store(true, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Team::work(std::uint32_t thread) noexcept {
  const IeeeMode mode;
  std::uint32_t seen = 0;
  for (;;) {
    wait_change(epoch_, seen, spin_us_);
    ++seen;
    if (stop_.load(std::memory_order_relaxed)) return;
    task_(context_, thread);
    barrier();
  }
}

void Team::run(Task task, void* context) noexcept {
  const IeeeMode mode;
  if (num_threads_ == 1) {
    task(context, 0);
    return;
  }
  task_ = task;
  context_ = context;
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  task(context, 0);
  barrier();
}

void Team::barrier() noexcept {
  if (num_threads_ == 1) return;
  const std::uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads_) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.fetch_add(1, std::memory_order_release);
    phase_.notify_all();
    return;
  }
  wait_change(phase_, phase, spin_us_);
}

}  // namespace duckfleet::kernels
