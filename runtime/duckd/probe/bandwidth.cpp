// Read bandwidth of main memory: the number that decides what a duck is worth.
#include <emmintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
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
constexpr auto kBudget = std::chrono::milliseconds(300);
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

// Each thread reads its own buffer; the best of as many rounds as the budget allows, all threads together.
double measure(unsigned num_threads, std::size_t thread_bytes) {
  std::atomic<unsigned> ready{0};
  std::atomic<unsigned> round{0};
  std::atomic<unsigned> done{0};
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
        if (memory) sink += read_all(memory->bytes());
        done.fetch_add(1);
      }
    });
  }
  while (ready.load() < num_threads) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  double best_s = 1e9;
  const auto until = Clock::now() + kBudget;
  do {
    done = 0;
    const auto start = Clock::now();
    round.fetch_add(1);
    while (done.load() < num_threads) std::this_thread::yield();
    best_s = std::min(best_s, std::chrono::duration<double>(Clock::now() - start).count());
  } while (Clock::now() < until);
  stop = true;
  for (std::thread& thread : threads) thread.join();
  return failed ? 0.0 : static_cast<double>(num_threads) * static_cast<double>(thread_bytes) / best_s;
}

}  // namespace

void add_read_bandwidth(Report& report) {
  const auto num_threads = static_cast<unsigned>(std::max<std::size_t>(1, allowed_cpus().size()));
  const Json available = report.values["memory"].value("available_bytes", Json(nullptr));
  if (!available.is_number()) {
    report.unknown("measured.read_bandwidth", "available memory is not known");
    return;
  }
  // Far from every cache, and far from what the box has left.
  const std::size_t total = std::min<std::size_t>(kMaxTotalBytes, available.get<std::size_t>() / 4);
  const std::size_t thread_bytes = total / num_threads / 64 * 64;
  if (thread_bytes < kMinThreadBytes) {
    report.unknown("measured.read_bandwidth", "less than 8 MiB of memory a core is free to measure with");
    return;
  }
  const double bytes_per_s = measure(num_threads, thread_bytes);
  if (bytes_per_s == 0.0) {
    report.unknown("measured.read_bandwidth", "no memory for the buffers");
    return;
  }
  report.values["measured"]["read_bandwidth"] = {
      {"bytes_per_s", bytes_per_s}, {"num_threads", num_threads}, {"buffer_bytes", thread_bytes * num_threads}};
}

}  // namespace duckfleet::duckd::probe
