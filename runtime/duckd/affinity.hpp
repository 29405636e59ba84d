// Which cores we may use, and which thread sits where.
#pragma once

#include <sched.h>

#include <span>
#include <vector>

namespace duckfleet::duckd {

// The calling process's allowed cpus, ascending.
std::vector<int> allowed_cpus();

// Pins the calling thread; false when the kernel refuses. An empty list pins nothing.
bool pin_to(std::span<const int> cpus) noexcept;

// Where the team's threads sit, and for how long they may spin, so that no more threads spin than there are cores.
// Thread 0 of the team is the data plane's: it sees to the network between pieces of work.
struct ThreadPlan {
  std::vector<int> cpus;  // by thread; empty: not pinned
  unsigned spin_us = 0;   // 0: there are more threads than cores
};

ThreadPlan plan_threads(unsigned num_threads, std::span<const int> pinned_cpus, unsigned num_allowed, unsigned spin_us);

}  // namespace duckfleet::duckd
