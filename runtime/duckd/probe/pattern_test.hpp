// Writes patterns into memory and reads them back: stuck and coupled cells, address lines, bits that fade.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace duckfleet::duckd::probe {

struct WrongWord {
  const std::uint64_t* address;
  std::uint64_t expected, got;
};

struct PatternResult {
  std::uint64_t tested_bytes = 0;  // that went through at least one whole pattern
  std::uint64_t num_errors = 0;
  std::vector<WrongWord> errors;       // the first kMaxListed
  std::vector<std::string> patterns;   // those that were finished over all of the memory
};

inline constexpr std::size_t kMaxListed = 64;

// Runs the patterns in order over `words` until all are done or `until` has passed. `between` is called after a pattern
// was written and before it is read back: tests damage the memory there.
PatternResult test_patterns(std::span<std::uint64_t> words, std::chrono::steady_clock::time_point until,
                            const std::function<void(std::span<std::uint64_t>)>& between = {});

}  // namespace duckfleet::duckd::probe
