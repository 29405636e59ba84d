// A few threads that share the units of one phase after another, for work that comes in bursts of microseconds.
//
// Unlike a Team nobody waits for anybody to arrive: the leader takes units as well and goes on once all are done, so that
// a helper that is late, or whose core does something else just now, costs what it would have done and no more. Between
// wake() and rest() helpers spin for the next phase; after rest() they sleep and leave their cores to others.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace duckfleet::host {

class Crew {
 public:
  static constexpr std::uint32_t kMaxUnits = (1u << 24) - 1;

  explicit Crew(std::uint32_t num_threads);  // the leader is thread 0
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  [[nodiscard]] std::uint32_t num_threads() const noexcept { return static_cast<std::uint32_t>(helpers_.size()) + 1; }

  void wake() noexcept;
  void rest() noexcept;

  // body(unit, thread) for every unit, returns when all are done. One leader at a time, in IeeeMode. With one unit, or
  // without helpers, the leader does it all.
  template <typename F>  // F: void(std::uint32_t unit, std::uint32_t thread) noexcept
  void share(std::uint32_t num_units, F& body) noexcept {
    if (num_units <= 1 || helpers_.empty()) {
      for (std::uint32_t unit = 0; unit < num_units; ++unit) body(unit, 0u);
      return;
    }
    run(num_units, [](void* context, std::uint32_t unit, std::uint32_t thread) noexcept {
      (*static_cast<F*>(context))(unit, thread);
    }, &body);
  }

 private:
  using Unit = void (*)(void* context, std::uint32_t unit, std::uint32_t thread) noexcept;
  struct Phase {
    Unit unit = nullptr;
    void* context = nullptr;
  };

  void run(std::uint32_t num_units, Unit unit, void* context) noexcept;
  bool take(std::uint32_t thread) noexcept;  // does one unit; false: there is none
  void help(std::uint32_t thread) noexcept;

  // The phase's number, its number of units and the next unit in one word: what a claim returns says all about it, so
  // that a claim that comes late cannot be taken for one of another phase.
  alignas(64) std::atomic<std::uint64_t> claim_{0};
  alignas(64) std::atomic<std::uint32_t> done_{0};
  alignas(64) std::atomic<std::uint32_t> awake_{0};
  std::atomic<bool> stop_{false};
  std::array<Phase, 2> phases_;  // by the number's parity; the leader waits for a phase's units before the next
  std::uint16_t number_ = 0;
  std::vector<std::thread> helpers_;
};

}  // namespace duckfleet::host
