// What is best on this machine (fp9_kernels/src/tuning.hpp): measured at the first start, kept in the store's directory, and
// taken from there as long as processor, kernels and number of threads are the same.
#pragma once

#include <cstdint>
#include <string>

#include "affinity.hpp"
#include "kernels.hpp"

namespace duckfleet::duckd {

// How far ahead weights are asked for, in bytes. `directory` empty: measured, and not kept. A file that cannot be read is
// measured anew, one that cannot be written is logged.
std::uint32_t tuned_prefetch(const std::string& directory, const kernels::Kernels& kernels, unsigned num_threads,
                             const ThreadPlan& plan);

}  // namespace duckfleet::duckd
