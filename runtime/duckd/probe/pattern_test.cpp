#include "pattern_test.hpp"

#include <algorithm>
#include <atomic>
#include <array>
#include <thread>

#include "affinity.hpp"
#include "page_buffer.hpp"
#include "report.hpp"

namespace duckfleet::duckd::probe {
namespace {

using Clock = std::chrono::steady_clock;
using Words = std::span<std::uint64_t>;

constexpr std::size_t kPiece = (4u << 20) / sizeof(std::uint64_t);  // between two looks at the clock
constexpr std::size_t kReservedBytes = 256u << 20;  // for the daemon, the kernel and whoever logs in
constexpr std::size_t kMinBytes = 16u << 20;
constexpr std::size_t kBlockWords = (64u << 20) / sizeof(std::uint64_t);  // far from every cache; done whole, then the next

// SplitMix64 (Steele, Lea, Flood 2014): the same sequence again from the same seed, and from any place in it.
std::uint64_t mixed(std::uint64_t value) noexcept {
  value += 0x9E3779B97F4A7C15;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

class Test {
 public:
  Test(Words words, Clock::time_point until, const std::function<void(Words)>& between)
      : words_(words), until_(until), between_(between) {}

  // Writes expected(i) everywhere, then reads it back. False when time was up.
  template <typename Expected>
  bool pass(Expected expected) {
    return write(expected) && damage() && verify(expected, [](std::uint64_t word) { return word; });
  }

  // Moving inversions (Suk and Reddy 1981): upwards each word is read and turned over, downwards once more.
  bool moving_inversions(std::uint64_t pattern) {
    const auto same = [pattern](std::size_t) { return pattern; };
    const auto turned = [pattern](std::size_t) { return ~pattern; };
    const auto turn = [](std::uint64_t word) { return ~word; };
    return write(same) && damage() && verify(same, turn) && verify_down(turned, turn) &&
           verify(same, [](std::uint64_t word) { return word; });
  }

  void finished(const char* name) {
    result.tested_bytes = words_.size_bytes();
    result.patterns.emplace_back(name);
  }

  PatternResult result;

 private:
  bool late() const { return Clock::now() >= until_; }

  bool damage() {
    if (between_) between_(words_);
    return true;
  }

  template <typename Expected>
  bool write(Expected expected) {
    for (std::size_t begin = 0; begin < words_.size(); begin += kPiece) {
      if (late()) return false;
      const std::size_t end = std::min(begin + kPiece, words_.size());
      for (std::size_t i = begin; i < end; ++i) words_[i] = expected(i);
    }
    return true;
  }

  template <typename Expected, typename Then>
  bool verify(Expected expected, Then then) {
    for (std::size_t begin = 0; begin < words_.size(); begin += kPiece) {
      if (late()) return false;
      const std::size_t end = std::min(begin + kPiece, words_.size());
      for (std::size_t i = begin; i < end; ++i) check(i, expected(i), then);
    }
    return true;
  }

  template <typename Expected, typename Then>
  bool verify_down(Expected expected, Then then) {
    for (std::size_t end = words_.size(); end > 0;) {
      if (late()) return false;
      const std::size_t begin = end > kPiece ? end - kPiece : 0;
      for (std::size_t i = end; i-- > begin;) check(i, expected(i), then);
      end = begin;
    }
    return true;
  }

  template <typename Then>
  void check(std::size_t i, std::uint64_t expected, Then then) {
    const std::uint64_t got = *const_cast<const volatile std::uint64_t*>(&words_[i]);
    if (got != expected) [[unlikely]] {
      ++result.num_errors;
      if (result.errors.size() < kMaxListed) result.errors.push_back({&words_[i], expected, got});
    }
    const std::uint64_t next = then(expected);
    if (next != expected) words_[i] = next;
  }

  Words words_;
  Clock::time_point until_;
  const std::function<void(Words)>& between_;
};

}  // namespace

PatternResult test_patterns(Words words, Clock::time_point until, const std::function<void(Words)>& between) {
  Test test(words, until, between);
  const auto address = [&](std::size_t i) { return reinterpret_cast<std::uint64_t>(&words[i]); };
  if (!test.pass(address)) return test.result;
  test.finished("address");
  if (!test.pass([](std::size_t i) { return mixed(i); })) return test.result;
  test.finished("random");
  if (!test.moving_inversions(0x5555555555555555)) return test.result;
  test.finished("moving_inversions");
  // The bit walks from word to word; each word sees it in four of its places.
  for (unsigned shift = 0; shift < 64; shift += 16) {
    if (!test.pass([shift](std::size_t i) { return std::uint64_t{1} << ((i + shift) % 64); })) return test.result;
  }
  test.finished("walking_ones");
  return test.result;
}

namespace {

std::string hex(std::uint64_t value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text = "0x";
  for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[(value >> shift) & 15];
  return text;
}

// Block after block until time is up, all patterns over each.
PatternResult test_blocks(Words words, Clock::time_point until) {
  PatternResult total;
  for (std::size_t begin = 0; begin < words.size() && Clock::now() < until; begin += kBlockWords) {
    const PatternResult block = test_patterns(words.subspan(begin, std::min(kBlockWords, words.size() - begin)), until);
    total.tested_bytes += block.tested_bytes;
    total.num_errors += block.num_errors;
    for (const WrongWord& wrong : block.errors) {
      if (total.errors.size() < kMaxListed) total.errors.push_back(wrong);
    }
    if (block.patterns.size() > total.patterns.size()) total.patterns = block.patterns;
  }
  return total;
}

}  // namespace

void add_pattern_test(Report& report, unsigned seconds) {
  const Json available = report.values["memory"].value("available_bytes", Json(nullptr));
  if (!available.is_number()) return report.unknown("memory_test", "available memory is not known");
  const auto free_bytes = available.get<std::size_t>();
  const auto cpus = allowed_cpus();
  const std::size_t num_threads = std::max<std::size_t>(1, cpus.size());
  // A quarter is left where there is little: the test must not drive the box into its out-of-memory killer.
  const std::size_t reserved = std::max(std::min(kReservedBytes, free_bytes / 2), free_bytes / 16);
  const std::size_t each = (free_bytes - reserved) / num_threads / 4096 * 4096;
  if (each < kMinBytes) return report.unknown("memory_test", "less than 16 MiB of memory a core is free to test");
  const auto until = Clock::now() + std::chrono::seconds(seconds);
  std::vector<PatternResult> results(num_threads);
  std::atomic<bool> failed{false};
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < num_threads; ++i) {
      threads.emplace_back([&, i] {
        if (i < cpus.size()) pin_to({&cpus[i], 1});
        auto memory = PageBuffer::anonymous(each);
        if (!memory) {
          failed = true;
          return;
        }
        auto* words = reinterpret_cast<std::uint64_t*>(memory->bytes().data());
        results[i] = test_blocks({words, each / sizeof(std::uint64_t)}, until);
      });
    }
  }
  if (failed) return report.unknown("memory_test", "no memory for the test");
  std::uint64_t tested = 0, num_errors = 0;
  Json errors = Json::array();
  for (const PatternResult& result : results) {
    tested += result.tested_bytes;
    num_errors += result.num_errors;
    for (const WrongWord& wrong : result.errors) {
      if (errors.size() == kMaxListed) break;
      errors.push_back({{"address", hex(reinterpret_cast<std::uint64_t>(wrong.address))},
                        {"expected", hex(wrong.expected)},
                        {"got", hex(wrong.got)}});
    }
  }
  if (tested == 0 && num_errors == 0) return report.unknown("memory_test", "not even one pattern was done in time");
  report.took("memory_test", "patterns over free memory");
  report.values["memory_test"] = {{"tested_bytes", tested},
                                  {"patterns", results.front().patterns},
                                  {"num_errors", num_errors},
                                  {"errors", std::move(errors)}};
}

}  // namespace duckfleet::duckd::probe
