#include "compute.hpp"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "activations.hpp"

namespace duckfleet::duckd {
namespace {

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

std::uint64_t nanoseconds_between(Clock::time_point start, Clock::time_point end) {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(end - start).count());
}

}  // namespace

// One part's kernels on one side, the request's slot and the attendant on the other. Keeps the time that is not theirs.
class Compute::PartStream final : public kernels::FfnStream {
 public:
  PartStream(Slot& slot, Attendant& attendant) : slot_(slot), attendant_(attendant) {}

  // The rows that follow belong to this vector of the slot: rows of `sum` (empty: none) are to be added to it, and it is
  // final with them when this is its last part. Narrow activations are widened to `widened` as they come.
  void begin_part(std::size_t vector, std::span<const float> sum, bool is_last_part, std::span<float> widened) noexcept {
    vector_ = vector;
    sum_ = sum;
    is_last_part_ = is_last_part;
    widened_ = widened;
    columns_ = 0;
  }

  std::uint32_t columns_ready(bool idle) noexcept override {
    const auto begun = Clock::now();
    const bool wanted = attendant_.attend(idle);
    (idle ? idle_ns_ : attending_ns_) += nanoseconds_between(begun, Clock::now());
    if (!wanted) return kGiveUp;
    const std::uint32_t columns = slot_.assembly.columns_ready();
    if (!widened_.empty() && columns > columns_) widen_columns(columns);
    columns_ = columns;
    return columns;
  }

  void rows_ready(std::uint32_t row0, std::uint32_t num_rows) noexcept override {
    if (!sum_.empty()) {
      const wire::DataHeader& header = slot_.assembly.header();
      // The parts of a slice, added in ascending order: docs/formats.md.
      float* const total = slot_.vectors[vector_].values(sum_.size()).data();
      for (std::size_t t = 0; t < header.num_tokens; ++t) {
        const std::size_t first = t * header.hidden + row0;
        for (std::size_t i = first; i < first + num_rows; ++i) total[i] += sum_[i];
      }
    }
    if (is_last_part_) attendant_.rows_final(row0, num_rows);
  }

  std::uint64_t attending_ns() const noexcept { return attending_ns_; }
  std::uint64_t idle_ns() const noexcept { return idle_ns_; }

 private:
  void widen_columns(std::uint32_t columns) noexcept {
    const wire::DataHeader& header = slot_.assembly.header();
    const auto wire = slot_.assembly.activations();
    for (std::size_t t = 0; t < header.num_tokens; ++t) {
      const std::size_t first = t * header.hidden + columns_, count = columns - columns_;
      widen(static_cast<wire::WireDtype>(header.wire_dtype), wire.subspan(2 * first, 2 * count), widened_.subspan(first, count));
    }
  }

  Slot& slot_;
  Attendant& attendant_;
  std::span<float> widened_;
  std::uint32_t columns_ = 0;
  std::size_t vector_ = 0;
  std::span<const float> sum_;
  bool is_last_part_ = true;
  std::uint64_t attending_ns_ = 0, idle_ns_ = 0;
};

Compute::Compute(const kernels::Kernels& kernels, unsigned num_threads, const ThreadPlan& plan, DataCounters& counters)
    : kernels_(kernels), counters_(counters), team_(num_threads, plan.cpus, plan.spin_us) {}

bool Compute::run_part(const Part& part, const Assembly& request, std::span<float> out, std::span<float> widened,
                       PartStream& stream) {
  const wire::DataHeader& header = request.header();
  const float* x =
      widened.empty() ? reinterpret_cast<const float*>(request.activations().data()) : widened.data();
  const auto* routes = header.top_k == 0 ? nullptr : reinterpret_cast<const kernels::Route*>(request.routes().data());
  const kernels::FfnBatch batch{header.num_tokens, header.hidden, header.top_k, x, routes};
  if (!kernels::ffn_part(kernels_, team_, part.chunks, batch, out.data(), workspace_, &stream)) return false;
  counters_.weight_bytes.add(weight_bytes(part, request.routes()));
  return true;
}

bool Compute::run(const Session& session, Slot& slot, Attendant& attendant) {
  const wire::DataHeader& header = slot.assembly.header();
  const std::size_t count = std::size_t{header.num_tokens} * header.hidden;
  const auto started = Clock::now();
  const bool whole = header.slice == wire::kAsAssigned;
  const std::uint16_t index = whole ? session.config().rank : header.slice;
  const Slice& slice = *session.shard().find(header.layer, index);

  std::span<float> widened;
  if (static_cast<wire::WireDtype>(header.wire_dtype) != wire::WireDtype::kF32) widened = floats(widened_, count);
  PartStream stream(slot, attendant);
  slot.num_vectors = 0;
  for (const Part& part : slice) {
    if (!whole && ((header.part >> part.index) & 1) == 0) continue;
    std::span<float> out, sum;
    if (whole && slot.num_vectors == 1) {
      out = sum = floats(part_sum_, count);
    } else {
      ResultVector& vector = slot.vectors[slot.num_vectors];
      vector.slice = index;
      vector.part = whole ? wire::kWholeSlice : static_cast<std::uint8_t>(part.index);
      out = floats(vector.memory, count);
      ++slot.num_vectors;
    }
    const bool is_last = !whole || &part == &slice.back();
    stream.begin_part(slot.num_vectors - 1, sum, is_last, widened);
    if (!run_part(part, slot.assembly, out, widened, stream)) return false;
    if (is_last) attendant.vector_final();
  }
  const std::uint64_t elapsed_ns = nanoseconds_between(started, Clock::now());
  counters_.compute.record(elapsed_ns - stream.idle_ns() - stream.attending_ns() / team_.num_threads());
  counters_.computed.add();
  return true;
}

}  // namespace duckfleet::duckd
