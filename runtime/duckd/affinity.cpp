#include "affinity.hpp"

#include <cstddef>

namespace duckfleet::duckd {

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

bool pin_to(std::span<const int> cpus) noexcept {
  if (cpus.empty()) return true;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) {
    if (cpu < 0 || cpu >= CPU_SETSIZE) return false;
    CPU_SET(cpu, &set);
  }
  return sched_setaffinity(0, sizeof set, &set) == 0;
}

ThreadPlan plan_threads(unsigned num_threads, std::span<const int> pinned_cpus, unsigned num_allowed, unsigned spin_us) {
  const std::size_t num_cores = pinned_cpus.empty() ? num_allowed : pinned_cpus.size();
  ThreadPlan plan;
  if (num_cores >= num_threads) plan.spin_us = spin_us;
  if (!pinned_cpus.empty()) {
    for (unsigned i = 0; i < num_threads; ++i) plan.cpus.push_back(pinned_cpus[i % pinned_cpus.size()]);
  }
  return plan;
}

}  // namespace duckfleet::duckd
