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

// Where the threads sit and which of them may spin, so that no more threads spin than there are cores.
//
// The network thread and compute thread 0 are two threads. With a core to spare the network thread has it, and both
// spin. Without, they share the first core: the network thread spins only while nothing is computed, and compute
// thread 0 blocks between requests.
struct ThreadPlan {
  std::vector<int> compute_cpus;  // empty: not pinned
  std::vector<int> network_cpus;
  bool spare_core = false;
  unsigned team_spin_us = 0;
  unsigned network_spin_us = 0;
};

ThreadPlan plan_threads(unsigned num_threads, std::span<const int> pinned_cpus, unsigned num_allowed, unsigned spin_us);

}  // namespace duckfleet::duckd
