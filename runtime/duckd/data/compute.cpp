#include "compute.hpp"

#include <immintrin.h>

#include <algorithm>
#include <new>
#include <utility>

#include "activations.hpp"
#include "log.hpp"

namespace duckfleet::duckd {
namespace {

// Reply fragments that the compute thread sends itself, at once; the network thread sends the rest, so that the next
// request is computed meanwhile. With a pace given, only what a switch port surely buffers.
constexpr std::size_t kDirectFragments = 64;
constexpr std::size_t kDirectFragmentsPaced = 16;

static_assert(sizeof(kernels::Route) == sizeof(wire::Route) && alignof(kernels::Route) <= 4);

// Grows, never shrinks, keeps nothing of what it held.
std::span<float> floats(PageBuffer& memory, std::size_t count) {
  const std::size_t bytes = count * sizeof(float);
  if (memory.size() < bytes) {
    auto larger = PageBuffer::anonymous(bytes);
    if (!larger) throw std::bad_alloc();
    memory = std::move(*larger);
  }
  return {reinterpret_cast<float*>(memory.bytes().data()), count};
}

std::uint64_t matrix_bytes(const kernels::MatrixView& view) {
  const std::uint64_t stream = std::uint64_t{view.num_panels} * view.num_blocks * kernels::block_bytes(view.format);
  const std::uint64_t scales = view.scales ? std::uint64_t{view.num_panels} * view.num_tiles * sizeof(float) : 0;
  return stream + scales;
}

bool routed(std::span<const wire::Route> routes, std::uint32_t expert) {
  return routes.empty() || std::ranges::any_of(routes, [=](const wire::Route& route) { return route.expert == expert; });
}

std::uint64_t weight_bytes(const Part& part, std::span<const wire::Route> routes) {
  std::uint64_t bytes = 0;
  for (const auto& chunk : part.chunks) {
    for (const auto& section : chunk.sections()) {
      if (routed(routes, section.expert)) bytes += matrix_bytes(section.gate_up) + matrix_bytes(section.down);
    }
  }
  return bytes;
}

std::uint64_t nanoseconds_since(Clock::time_point start) {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
}

}  // namespace

Compute::Compute(const kernels::Kernels& kernels, unsigned num_threads, const ThreadPlan& plan, Transport& transport,
                 DataCounters& counters, std::function<void()> finished)
    : kernels_(kernels), num_threads_(num_threads), plan_(plan), counters_(counters),
      finished_callback_(std::move(finished)), sender_(transport, counters), thread_([this] { run(); }) {}

Compute::~Compute() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    num_queued_.fetch_add(1, std::memory_order_release);  // ends the spin
  }
  wakeup_.notify_one();
  thread_.join();
}

void Compute::submit(Job job) {
  num_pending_.fetch_add(1, std::memory_order_release);
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(job));
    num_queued_.fetch_add(1, std::memory_order_release);
  }
  wakeup_.notify_one();
}

std::vector<FinishedJob> Compute::take_finished() {
  const std::lock_guard lock(mutex_);
  return std::exchange(finished_, {});
}

bool Compute::next(Job& job) {
  if (plan_.spare_core && plan_.team_spin_us > 0) {
    const auto until = Clock::now() + std::chrono::microseconds(plan_.team_spin_us);
    while (num_queued_.load(std::memory_order_acquire) == 0 && Clock::now() < until) _mm_pause();
  }
  std::unique_lock lock(mutex_);
  wakeup_.wait(lock, [this] { return stop_ || !queue_.empty(); });
  if (stop_) return false;
  job = std::move(queue_.front());
  queue_.pop_front();
  num_queued_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

void Compute::run() {
  if (!plan_.compute_cpus.empty()) pin_to(std::span(plan_.compute_cpus).first(1));
  const kernels::IeeeMode ieee;
  team_ = std::make_unique<kernels::Team>(num_threads_, plan_.compute_cpus, plan_.team_spin_us);
  Job job;
  while (next(job)) {
    FinishedJob finished{std::move(job), false, 0, 0};
    if (finished.job.slot->cancelled.load(std::memory_order_acquire)) {
      counters_.cancelled.add();
      finished.failed = true;
    } else {
      try {
        compute(finished.job, finished);
      } catch (const std::bad_alloc&) {
        log_error("out_of_memory").with("layer", finished.job.slot->assembly.header().layer);
        finished.failed = true;
      }
    }
    {
      const std::lock_guard lock(mutex_);
      finished_.push_back(std::move(finished));
    }
    num_pending_.fetch_sub(1, std::memory_order_release);
    finished_callback_();
  }
}

void Compute::run_part(const Part& part, const Assembly& request, std::span<float> out) {
  const wire::DataHeader& header = request.header();
  const auto activations = request.activations();
  const float* x = reinterpret_cast<const float*>(activations.data());
  if (const auto dtype = static_cast<wire::WireDtype>(header.wire_dtype); dtype != wire::WireDtype::kF32) {
    const auto widened = floats(widened_, std::size_t{header.num_tokens} * header.hidden);
    widen(dtype, activations, widened);
    x = widened.data();
  }
  const auto* routes = header.top_k == 0 ? nullptr : reinterpret_cast<const kernels::Route*>(request.routes().data());
  const kernels::FfnBatch batch{header.num_tokens, header.hidden, header.top_k, x, routes};
  kernels::ffn_part(kernels_, *team_, part.chunks, batch, out.data(), workspace_);
  counters_.weight_bytes.add(weight_bytes(part, request.routes()));
}

void Compute::compute(const Job& job, FinishedJob& finished) {
  Slot& slot = *job.slot;
  const Assembly& request = slot.assembly;
  const wire::DataHeader& header = request.header();
  const std::size_t count = std::size_t{header.num_tokens} * header.hidden;
  const auto started = Clock::now();
  const bool whole = header.slice == wire::kAsAssigned;
  const std::uint16_t index = whole ? job.session->config().rank : header.slice;
  const Slice* slice = job.session->shard().find(header.layer, index);

  slot.num_vectors = 0;
  for (const Part& part : *slice) {
    if (!whole && ((header.part >> part.index) & 1) == 0) continue;
    if (whole && slot.num_vectors == 1) {
      // The parts of a slice, added in ascending order: docs/formats.md.
      const auto sum = floats(part_sum_, count);
      run_part(part, request, sum);
      const auto total = slot.vectors[0].values(count);
      for (std::size_t i = 0; i < count; ++i) total[i] += sum[i];
      continue;
    }
    ResultVector& vector = slot.vectors[slot.num_vectors];
    vector.slice = index;
    vector.part = whole ? wire::kWholeSlice : static_cast<std::uint8_t>(part.index);
    run_part(part, request, floats(vector.memory, count));
    ++slot.num_vectors;
  }
  counters_.compute.record(nanoseconds_since(started));
  counters_.computed.add();
  slot.computed.store(true, std::memory_order_release);
  send_first(job, finished);
  counters_.turnaround.record(nanoseconds_since(slot.whole_at));
}

void Compute::send_first(const Job& job, FinishedJob& finished) {
  Slot& slot = *job.slot;
  const auto end = static_cast<std::uint32_t>(wire::reply_bytes(slot.assembly.header()));
  const std::uint32_t fragment_bytes = job.session->config().reply_fragment_bytes;
  std::size_t budget = job.session->config().pace_bytes_per_s != 0 ? kDirectFragmentsPaced : kDirectFragments;
  while (finished.next_vector < slot.num_vectors && budget > 0) {
    const std::uint32_t begin = finished.next_offset;
    finished.next_offset = sender_.send_vector(*job.session, slot, finished.next_vector, begin, end, budget);
    budget -= std::min<std::size_t>(budget, (finished.next_offset - begin + fragment_bytes - 1) / fragment_bytes);
    if (finished.next_offset < end) return;
    counters_.replies.add();
    finished.next_offset = 0;
    ++finished.next_vector;
  }
}

}  // namespace duckfleet::duckd
