// What is best on one machine and not on another, and changes no bits: how far ahead of its reads a kernel asks for weights.
//
// On a machine whose own prefetcher follows the streams, asking by instruction wins nothing; on another it takes a
// product from 0.65 to 0.95 of the read limit. So it is measured, and holds for the process.
#pragma once

#include <cstdint>

#include "kernels.hpp"
#include "team.hpp"

namespace duckfleet::kernels {

// 0 asks for what is read next anyway.
inline constexpr std::uint32_t kPrefetchDistances[] = {0, 1024, 2048, 4096, 8192};
inline constexpr std::uint32_t kDefaultPrefetchBytes = 4096;

// The distance of products that begin from now on. From any thread.
std::uint32_t prefetch_bytes() noexcept;
void set_prefetch_bytes(std::uint32_t bytes) noexcept;

// The one of kPrefetchDistances that reads e4m3 weights the fastest on all threads of the team; the default where another
// is not clearly better, or where the kernels do not prefetch. Takes about 50 ms, and 16 MiB a thread meanwhile. Throws
// std::bad_alloc.
std::uint32_t fastest_prefetch(const Kernels& kernels, Team& team);

}  // namespace duckfleet::kernels
