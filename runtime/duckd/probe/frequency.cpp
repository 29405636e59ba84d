// Frequency of each core while all of them compute with AVX2: what the box sustains, not what it advertises.
//
// A chain of dependent integer multiplications takes three cycles each on every x86-64 of the last fifteen years (Agner
// Fog, Instruction tables), whatever else the core does beside it; so counting them counts cycles. Independent fused
// multiply-adds run beside the chain and make the load. Time is the thread's own: what another process takes of the core
// is not the core's slowness.
#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "affinity.hpp"
#include "report.hpp"

namespace duckfleet::duckd::probe {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kCyclesEach = 3;
constexpr int kChainLength = 64;
constexpr auto kShortLoad = std::chrono::milliseconds(240);
constexpr auto kShortWindow = std::chrono::milliseconds(60);
constexpr auto kLongWindow = std::chrono::seconds(1);

double thread_s() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// `num_rounds` times a chain of kChainLength multiplications, with as many multiply-adds of 8 floats beside it.
__attribute__((target("avx2,fma"))) std::uint64_t chain(std::uint64_t value, int num_rounds) noexcept {
  __m256 a = _mm256_set1_ps(1.0f), b = a, c = a, d = a;
  const __m256 factor = _mm256_set1_ps(0.999f), term = _mm256_set1_ps(0.001f);
  for (int round = 0; round < num_rounds; ++round) {
    for (int i = 0; i < kChainLength; i += 4) {
      asm volatile("imul %[f], %[v]\n\timul %[f], %[v]\n\timul %[f], %[v]\n\timul %[f], %[v]"
                   : [v] "+r"(value)
                   : [f] "r"(std::uint64_t{0x9E3779B97F4A7C15})
                   : "cc");
      a = _mm256_fmadd_ps(a, factor, term);
      b = _mm256_fmadd_ps(b, factor, term);
      c = _mm256_fmadd_ps(c, factor, term);
      d = _mm256_fmadd_ps(d, factor, term);
    }
  }
  const __m256 sum = _mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d));
  return value + static_cast<std::uint64_t>(_mm256_cvtss_f32(sum));
}

struct Core {
  int cpu = 0;
  std::vector<double> mhz;  // by window
};

// One core's part: windows of `window`, each with the frequency of this thread's own time.
void load_core(Core& core, Clock::time_point start, Clock::duration window, int num_windows, std::atomic<std::uint64_t>& sink) {
  pin_to({&core.cpu, 1});
  std::uint64_t value = 1;
  for (int i = 0; i < num_windows; ++i) {
    const auto until = start + window * (i + 1);
    const double begin_s = thread_s();
    std::uint64_t num_chains = 0;
    do {
      value = chain(value, 512);
      num_chains += 512;
    } while (Clock::now() < until);
    const double took_s = thread_s() - begin_s;
    core.mhz.push_back(took_s > 0 ? static_cast<double>(num_chains) * kChainLength * kCyclesEach / took_s / 1e6 : 0.0);
  }
  sink += value;
}

}  // namespace

void add_frequency(Report& report, unsigned seconds) {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
    report.unknown("measured.frequency", "this cpu has no AVX2 and FMA");
    return;
  }
  const bool is_long = seconds != 0;
  const Clock::duration window = is_long ? Clock::duration(kLongWindow) : Clock::duration(kShortWindow);
  const int num_windows = is_long ? static_cast<int>(seconds) : static_cast<int>(kShortLoad / kShortWindow);
  std::vector<Core> cores;
  for (const int cpu : allowed_cpus()) cores.push_back({cpu, {}});
  std::atomic<std::uint64_t> sink{0};
  const auto start = Clock::now();
  {
    std::vector<std::jthread> threads;
    for (Core& core : cores) threads.emplace_back([&] { load_core(core, start, window, num_windows, sink); });
  }
  Json samples = Json::array();
  const double window_s = std::chrono::duration<double>(window).count();
  for (int i = 0; i < num_windows; ++i) {
    Json mhz = Json::array();
    for (const Core& core : cores) mhz.push_back(core.mhz[static_cast<std::size_t>(i)]);
    samples.push_back({{"at_s", window_s * (i + 1)}, {"mhz", std::move(mhz)}});
  }
  report.took("measured.frequency", "cycles of a multiplication chain under AVX2 load");
  const Json no_turbo = number_or_null("/sys/devices/system/cpu/intel_pstate/no_turbo");
  report.values["measured"]["frequency"] = {
      {"samples", std::move(samples)},
      {"turbo", no_turbo.is_null() ? Json(nullptr) : Json(no_turbo == 0)},
      {"scaling_max_khz", number_or_null("/sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq")}};
}

}  // namespace duckfleet::duckd::probe
