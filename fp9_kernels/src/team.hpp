// A persistent team of threads: spins while there is work, blocks when idle. The caller is thread 0.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

namespace duckfleet::kernels {

// Sets the calling thread's floating-point mode to IEEE defaults (round to nearest, subnormals kept) for its lifetime:
// the sums' bits must not depend on what the caller's other libraries have set.
class IeeeMode {
 public:
  IeeeMode() noexcept;
  ~IeeeMode();
  IeeeMode(const IeeeMode&) = delete;
  IeeeMode& operator=(const IeeeMode&) = delete;

 private:
  std::uint32_t before_;
};

class Team {
 public:
  // Starts num_threads - 1 threads (num_threads >= 1). Thread i >= 1 is pinned to cpus[i] where cpus has as many; the
  // caller pins itself. A thread without work, or waiting at a barrier, spins for spin_us and then gives up its core.
  explicit Team(std::uint32_t num_threads, std::span<const int> cpus = {}, std::uint32_t spin_us = 50);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  std::uint32_t num_threads() const noexcept { return num_threads_; }

  // Runs task(context, thread) on every thread and returns when all are done. One call at a time.
  using Task = void (*)(void* context, std::uint32_t thread) noexcept;
  void run(Task task, void* context) noexcept;

  template <typename F>  // F: void(std::uint32_t thread) noexcept
  void run(F& body) noexcept {
    run([](void* context, std::uint32_t thread) noexcept { (*static_cast<F*>(context))(thread); }, &body);
  }

  // Inside a task: returns once every thread of the team has called it.
  void barrier() noexcept;

 private:
  void work(std::uint32_t thread) noexcept;

  const std::uint32_t num_threads_;
  const std::uint32_t spin_us_;
  Task task_ = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<std::uint32_t> epoch_{0};  // counts runs
  alignas(64) std::atomic<std::uint32_t> arrived_{0};
  alignas(64) std::atomic<std::uint32_t> phase_{0};  // counts barriers passed
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace duckfleet::kernels
