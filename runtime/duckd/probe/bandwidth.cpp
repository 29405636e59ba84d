// Bandwidth of main memory: the read bandwidth decides what a duck is worth, the write bandwidth tells of its modules.
#include <emmintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "affinity.hpp"
#include "page_buffer.hpp"
#include "report.hpp"

namespace duckfleet::duckd::probe {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxTotalBytes = 256u << 20;
constexpr std::size_t kMinThreadBytes = 8u << 20;
constexpr auto kReadBudget = std::chrono::milliseconds(300);
constexpr auto kWriteBudget = std::chrono::milliseconds(120);
constexpr std::size_t kPrefetchAhead = 2048;

// Sums 64 bytes at a time; prefetching may look past the end, which is harmless.
std::int64_t read_all(std::span<const std::byte> bytes) noexcept {
  __m128i a = _mm_setzero_si128(), b = a, c = a, d = a;
  for (std::size_t i = 0; i + 64 <= bytes.size(); i += 64) {
    const std::byte* at = bytes.data() + i;
    _mm_prefetch(reinterpret_cast<const char*>(reinterpret_cast<std::uintptr_t>(at) + kPrefetchAhead), _MM_HINT_T0);
    const auto* vectors = reinterpret_cast<const __m128i*>(at);
    a = _mm_add_epi64(a, _mm_load_si128(vectors));
    b = _mm_add_epi64(b, _mm_load_si128(vectors + 1));
    c = _mm_add_epi64(c, _mm_load_si128(vectors + 2));
    d = _mm_add_epi64(d, _mm_load_si128(vectors + 3));
  }
  return _mm_cvtsi128_si64(_mm_add_epi64(_mm_add_epi64(a, b), _mm_add_epi64(c, d)));
}

// Past the caches, so that no line is read first.
std::int64_t write_all(std::span<std::byte> bytes) noexcept {
  const __m128i value = _mm_set1_epi8(3);
  for (std::size_t i = 0; i + 64 <= bytes.size(); i += 64) {
    auto* vectors = reinterpret_cast<__m128i*>(bytes.data() + i);
    for (int j = 0; j < 4; ++j) _mm_stream_si128(vectors + j, value);
  }
  _mm_sfence();
  return 0;
}

struct Rates {
  double read_bytes_per_s = 0, write_bytes_per_s = 0;
};

// Each thread has its own buffer; the best of as many rounds as the budget allows, all threads together.
std::optional<Rates> measure(unsigned num_threads, std::size_t thread_bytes) {
  std::atomic<unsigned> ready{0};
  std::atomic<unsigned> round{0};
  std::atomic<unsigned> done{0};
  std::atomic<bool> writing{false};
  std::atomic<bool> stop{false};
  std::atomic<bool> failed{false};
  std::atomic<std::int64_t> sink{0};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < num_threads; ++i) {
    threads.emplace_back([&] {
      auto memory = PageBuffer::anonymous(thread_bytes);
      if (memory) {
        std::ranges::fill(memory->bytes(), std::byte{1});
      } else {
        failed = true;
      }
      ready.fetch_add(1);
      for (unsigned seen = 0;;) {
        while (round.load() == seen && !stop.load()) std::this_thread::yield();
        if (stop.load()) return;
        seen = round.load();
        if (memory) sink += writing.load() ? write_all(memory->bytes()) : read_all(memory->bytes());
        done.fetch_add(1);
      }
    });
  }
  while (ready.load() < num_threads) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto best = [&](Clock::duration budget) {
    double best_s = 1e9;
    const auto until = Clock::now() + budget;
    do {
      done = 0;
      const auto start = Clock::now();
      round.fetch_add(1);
      while (done.load() < num_threads) std::this_thread::yield();
      best_s = std::min(best_s, std::chrono::duration<double>(Clock::now() - start).count());
    } while (Clock::now() < until);
    return static_cast<double>(num_threads) * static_cast<double>(thread_bytes) / best_s;
  };
  Rates rates;
  rates.read_bytes_per_s = best(kReadBudget);
  writing = true;
  rates.write_bytes_per_s = best(kWriteBudget);
  stop = true;
  for (std::thread& thread : threads) thread.join();
  return failed ? std::nullopt : std::optional(rates);
}

}  // namespace

void add_bandwidth(Report& report) {
  const auto num_threads = static_cast<unsigned>(std::max<std::size_t>(1, allowed_cpus().size()));
  const auto unknown = [&](const char* reason) {
    report.unknown("measured.read_bandwidth", reason);
    report.unknown("measured.write_bandwidth", reason);
  };
  const Json available = report.values["memory"].value("available_bytes", Json(nullptr));
  if (!available.is_number()) return unknown("available memory is not known");
  // Far from every cache, and far from what the box has left.
  const std::size_t total = std::min<std::size_t>(kMaxTotalBytes, available.get<std::size_t>() / 16);
  const std::size_t thread_bytes = total / num_threads / 64 * 64;
  if (thread_bytes < kMinThreadBytes) return unknown("less than 8 MiB of memory a core is free to measure with");
  const auto rates = measure(num_threads, thread_bytes);
  if (!rates) return unknown("no memory for the buffers");
  report.took("measured.read_bandwidth", "loads of 16 bytes by every core");
  report.values["measured"]["read_bandwidth"] = {
      {"bytes_per_s", rates->read_bytes_per_s}, {"num_threads", num_threads}, {"buffer_bytes", thread_bytes * num_threads}};
  report.took("measured.write_bandwidth", "stores past the caches by every core");
  report.values["measured"]["write_bandwidth"] = {
      {"bytes_per_s", rates->write_bytes_per_s}, {"num_threads", num_threads}, {"buffer_bytes", thread_bytes * num_threads}};
}

}  // namespace duckfleet::duckd::probe
