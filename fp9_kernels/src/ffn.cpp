#include "ffn.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "tuning.hpp"
#include "workspace.hpp"

namespace duckfleet::kernels {
namespace {

using Section = PackedChunk::Section;

// One expert that some token is routed to, and its tokens in order.
struct ActiveExpert {
  const Section* section;
  std::uint32_t begin, count;  // range of the pairs
  std::uint64_t h_offset;      // floats from the start of h to its [count, h_stride]
  std::uint32_t h_stride;
};

struct Pair {
  std::uint32_t token;
  float weight;
};

// A piece of the first stage: panels [panel0, panel0 + num_panels) of an expert's gate_up, and where panel_gap is not 0,
// as many from panel0 + panel_gap on.
struct GateUpUnit {
  std::uint32_t expert;  // index into the active ones
  std::uint32_t panel0, num_panels, panel_gap;

  std::uint32_t width() const noexcept { return num_panels * (panel_gap == 0 ? 1 : 2) * kPanelRows; }
};

// Two groups of three panels hold whole pairs of gate and up, and so do one or two groups of two.
constexpr std::uint32_t kUnitGroups = 2;
constexpr std::uint32_t kMaxUnitPanels = 2 * kUnitGroups * kGroupPanels;

// Pieces of the first stage that a thread may have begun while activations are still coming in: enough to be at work
// for as long as they take to arrive.
constexpr std::uint32_t kMaxOpenUnits = 8;
constexpr std::uint32_t kMaxTokensOpen = 8;  // with more tokens one piece keeps a thread long enough

// Tiles of a piece between two looks at the stream, for one token.
constexpr std::uint32_t kTilesBetweenLooks = 32;

}  // namespace

struct Workspace::Buffers {
  GrowingArray<const Section*> by_expert;
  GrowingArray<std::uint32_t> counts;
  GrowingArray<ActiveExpert> active;
  GrowingArray<Pair> pairs;
  GrowingArray<GateUpUnit> units;
  GrowingArray<float> x;             // [num_tokens, stride]
  GrowingArray<bool> x_shifted;      // by tile along k
  GrowingArray<float> h;             // by active expert
  GrowingArray<float> h_shifted;     // [threads] copies of h
  GrowingArray<float> tiles;         // [threads, kTileFloats]
  GrowingArray<float> sums;          // [threads, sums_floats]
  GrowingArray<const float*> in;     // [threads, num_pairs_max]
  GrowingArray<float*> out;          // [threads, num_pairs_max]
};

Workspace::Workspace() : buffers_(std::make_unique<Buffers>()) {}
Workspace::~Workspace() = default;
Workspace::Workspace(Workspace&&) noexcept = default;
Workspace& Workspace::operator=(Workspace&&) noexcept = default;

namespace {

class FfnCall {
 public:
  FfnCall(const Kernels& kernels, Team& team, std::span<const PackedChunk> chunks, const FfnBatch& batch, float* y,
          Workspace::Buffers& buffers, FfnStream* stream)
      : kernels_(kernels), team_(team), batch_(batch), y_(y), buffers_(buffers), stream_(stream) {
    find_active(chunks);
    cut_gate_up();
    x_padded_ = (batch.hidden + kBlockK - 1) / kBlockK * kBlockK;
    x_stride_ = spread_stride(x_padded_);
    num_x_tiles_ = (batch.hidden + kTile - 1) / kTile;
    max_open_ = stream != nullptr && batch.num_tokens <= kMaxTokensOpen ? kMaxOpenUnits : 1;
    buffers.x.reserve(batch.num_tokens * x_stride_);
    buffers.x_shifted.reserve(num_x_tiles_);
    buffers.h.reserve(h_floats_);
    const std::size_t threads = team.num_threads();
    // By the tokens of an expert, not of the batch: of 256 experts, 16 tokens take most for one of them only.
    may_shift_ = scaled_ && num_pairs_ <= std::size_t{kMaxShiftTokens} * num_active_;
    if (may_shift_) buffers.h_shifted.reserve(threads * h_floats_);
    buffers.tiles.reserve(threads * kTileFloats);
    // Every section's down has the same rows, so the same panels and groups; one without columns stands for them here.
    down_ = MatrixView::of(Format::kF32, PanelShape::of(0, batch.hidden, 0, 0), nullptr, nullptr);
    groups_a_unit_ = choose_down_groups();
    sums_floats_ = std::max<std::size_t>(std::size_t{batch.num_tokens} * groups_a_unit_ * kGroupPanels * kPanelRows,
                                         std::size_t{max_open_} * max_count_ * kMaxUnitPanels * kPanelRows);
    buffers.sums.reserve(threads * sums_floats_);
    buffers.in.reserve(threads * max_count_);
    buffers.out.reserve(threads * max_count_);
    if (stream == nullptr) return;
    const std::uint32_t columns = stream->columns_ready(false);
    x_is_whole_ = columns == batch.hidden;
    given_up_ = columns == FfnStream::kGiveUp;
  }

  bool given_up() const noexcept { return given_up_.load(std::memory_order_relaxed); }

  void operator()(std::uint32_t thread) noexcept {
    if (x_is_whole_) {
      prepare_x(thread);
      team_.barrier();
    }
    gate_up_stage(thread);
    team_.barrier();
    if (given_up()) return;
    const float* h = buffers_.h.get();
    bool shifted = false;
    if (may_shift_ && kernels_.can_shift(h, static_cast<std::uint32_t>(h_floats_))) {
      float* copy = buffers_.h_shifted.get() + thread * h_floats_;
      kernels_.shift(h, copy, static_cast<std::uint32_t>(h_floats_));
      h = copy;
      shifted = true;
    }
    for (;;) {
      const std::uint32_t group0 = next_down_.fetch_add(groups_a_unit_, std::memory_order_relaxed);
      if (group0 >= down_.num_groups()) break;
      if (thread == 0 && stream_ != nullptr) look(false);
      if (given_up()) break;
      const std::uint32_t panel0 = down_.group_first_panel(group0);
      const std::uint32_t group_end = std::min(group0 + groups_a_unit_, down_.num_groups());
      down(thread, panel0, down_.group_first_panel(group_end) - panel0, h, shifted);
    }
  }

 private:
  // Sorts the routes by expert: ascending ids, tokens in order within each.
  void find_active(std::span<const PackedChunk> chunks) {
    std::uint32_t num_ids = 0;
    for (const PackedChunk& chunk : chunks) {
      scaled_ = scaled_ && has_scales(chunk.format());
      if (!chunk.sections().empty()) num_ids = std::max(num_ids, chunk.sections().back().expert + 1);
    }
    const Section** by_expert = buffers_.by_expert.reserve(num_ids);
    std::uint32_t* counts = buffers_.counts.reserve(num_ids);
    std::fill_n(by_expert, num_ids, nullptr);
    std::fill_n(counts, num_ids, 0u);
    for (const PackedChunk& chunk : chunks)
      for (const Section& section : chunk.sections())
        if (section.num_cols != 0) by_expert[section.expert] = &section;

    static constexpr Route kDense{0, 1.0f};
    const std::uint32_t top_k = batch_.routes ? batch_.top_k : 1;
    const std::size_t num_routes = std::size_t{batch_.num_tokens} * top_k;
    const auto route = [&](std::size_t i) -> const Route& { return batch_.routes ? batch_.routes[i] : kDense; };
    const auto held = [&](const Route& r) { return r.expert < num_ids && by_expert[r.expert] != nullptr; };
    for (std::size_t i = 0; i < num_routes; ++i)
      if (held(route(i))) ++counts[route(i).expert];

    ActiveExpert* active = buffers_.active.reserve(std::min<std::size_t>(num_ids, num_routes));
    Pair* pairs = buffers_.pairs.reserve(num_routes);
    std::uint32_t begin = 0;
    for (std::uint32_t id = 0; id < num_ids; ++id) {
      if (counts[id] == 0) continue;
      const auto h_stride = static_cast<std::uint32_t>(spread_stride(by_expert[id]->num_cols));
      active[num_active_++] = {by_expert[id], begin, 0, h_floats_, h_stride};
      h_floats_ += std::size_t{counts[id]} * h_stride;
      max_count_ = std::max(max_count_, counts[id]);
      begin += counts[id];
      counts[id] = num_active_ - 1;  // from here on: the expert's index among the active
    }
    for (std::size_t i = 0; i < num_routes; ++i) {
      if (!held(route(i))) continue;
      ActiveExpert& expert = active[counts[route(i).expert]];
      ++num_pairs_;
      pairs[expert.begin + expert.count++] = {static_cast<std::uint32_t>(i / top_k), route(i).weight};
    }
  }

  // For one token pairs of groups from both halves, which kernels read as two streams; else groups that follow one another.
  void cut_gate_up() {
    const ActiveExpert* active = buffers_.active.get();
    std::size_t num_groups = 0;
    for (std::uint32_t e = 0; e < num_active_; ++e) num_groups += active[e].section->gate_up.num_groups();
    GateUpUnit* units = buffers_.units.reserve(num_groups);
    for (std::uint32_t e = 0; e < num_active_; ++e) {
      const MatrixView& matrix = active[e].section->gate_up;
      // Full groups are taken by twos, beginning with an even one, for then they hold whole pairs of panels. Their number is
      // even: that of all panels is, and that of the panels in groups of two.
      const std::uint32_t full = matrix.full_groups();
      const std::uint32_t gap = active[e].count == 1 ? (full / 2 + 1) / 2 * 2 : full, paired = full - gap;
      for (std::uint32_t g = 0; g < paired; g += kUnitGroups)
        units[num_units_++] = {e, g * kGroupPanels, kUnitGroups * kGroupPanels, gap * kGroupPanels};
      for (std::uint32_t g = paired; g < gap; g += kUnitGroups)
        units[num_units_++] = {e, g * kGroupPanels, kUnitGroups * kGroupPanels, 0};
      for (std::uint32_t g = full; g < matrix.num_groups(); ++g)
        units[num_units_++] = {e, matrix.group_first_panel(g), matrix.group_width(g), 0};
    }
  }

  // Groups of output panels of one unit of the second stage: long enough to read each expert as a stream, short enough to
  // share the work evenly and to keep the sums in cache.
  std::uint32_t choose_down_groups() const noexcept {
    const std::uint32_t num_groups = down_.num_groups();
    const std::uint32_t cap = batch_.num_tokens <= 6 ? 10 : batch_.num_tokens <= 32 ? 4 : 2;
    const std::uint32_t threads = team_.num_threads();
    const std::uint32_t rounds = (num_groups + threads * cap - 1) / (threads * cap);
    return (num_groups + threads * rounds - 1) / (threads * rounds);
  }

  // Copies this thread's share of the activations with their filling; shifted, where all of them allow it.
  void prepare_x(std::uint32_t thread) noexcept {
    bool shifted = may_shift_;
    for (std::uint32_t t = 0; shifted && t < batch_.num_tokens; ++t)
      shifted = kernels_.can_shift(batch_.x + std::size_t{t} * batch_.hidden, batch_.hidden);
    if (thread == 0) {
      std::fill_n(buffers_.x_shifted.get(), num_x_tiles_, shifted);
      ready_tiles_.store(num_x_tiles_, std::memory_order_release);
    }
    for (std::uint32_t t = thread; t < batch_.num_tokens; t += team_.num_threads()) copy_x(t, 0, batch_.hidden, shifted);
  }

  void copy_x(std::uint32_t token, std::uint32_t begin, std::uint32_t end, bool shifted) noexcept {
    const float* from = batch_.x + std::size_t{token} * batch_.hidden;
    float* to = buffers_.x.get() + token * x_stride_;
    if (shifted)
      kernels_.shift(from + begin, to + begin, end - begin);
    else
      copy_floats(from + begin, to + begin, end - begin);
    if (end == batch_.hidden) fill_floats(to + end, x_padded_ - end, -0.0f);
  }

  // Thread 0: asks the stream, and prepares the tiles of x that have come since.
  void look(bool idle) noexcept {
    const std::uint32_t columns = stream_->columns_ready(idle);
    if (columns == FfnStream::kGiveUp) {
      given_up_.store(true, std::memory_order_relaxed);
      return;
    }
    const std::uint32_t before = ready_tiles_.load(std::memory_order_relaxed);
    const std::uint32_t now = columns == batch_.hidden ? num_x_tiles_ : columns / kTile;
    for (std::uint32_t tile = before; tile < now; ++tile) {
      const std::uint32_t begin = tile * kTile, end = std::min(begin + kTile, batch_.hidden);
      bool shifted = may_shift_;
      for (std::uint32_t t = 0; shifted && t < batch_.num_tokens; ++t)
        shifted = kernels_.can_shift(batch_.x + std::size_t{t} * batch_.hidden + begin, end - begin);
      buffers_.x_shifted.get()[tile] = shifted;
      for (std::uint32_t t = 0; t < batch_.num_tokens; ++t) copy_x(t, begin, end, shifted);
    }
    if (now > before) ready_tiles_.store(now, std::memory_order_release);
  }

  // A piece of the first stage that has been begun.
  struct OpenUnit {
    std::uint32_t unit = 0;
    std::uint32_t next_tile = 0;  // along k
    float* sums = nullptr;        // [tokens of the expert, width]
  };

  // Takes piece after piece. While activations are still missing, a further one is begun whenever those at hand have
  // used up what is there.
  void gate_up_stage(std::uint32_t thread) noexcept {
    const bool looks = thread == 0 && stream_ != nullptr;
    const std::uint32_t step = looks ? std::max(1u, kTilesBetweenLooks / batch_.num_tokens) : num_x_tiles_;
    std::array<OpenUnit, kMaxOpenUnits> open;
    for (std::uint32_t i = 0; i < max_open_; ++i)
      open[i].sums = buffers_.sums.get() + thread * sums_floats_ + i * std::size_t{max_count_} * kMaxUnitPanels * kPanelRows;
    std::uint32_t num_open = 0;
    bool more = true;
    for (std::uint32_t waits = 0; !given_up();) {
      bool worked = false;
      for (std::uint32_t i = 0; i < num_open;) {
        OpenUnit& unit = open[i];
        for (std::uint32_t end; (end = std::min(ready_tiles(), unit.next_tile + step)) > unit.next_tile;) {
          gate_up(thread, unit, end);
          worked = true;
          if (looks) look(false);
          if (given_up()) return;
        }
        if (unit.next_tile == num_x_tiles_)
          std::swap(unit, open[--num_open]);  // its sums are free for another
        else
          ++i;
      }
      if (worked) continue;
      if (more && num_open < max_open_) {
        const std::uint32_t next = next_gate_up_.fetch_add(1, std::memory_order_relaxed);
        more = next < num_units_;
        if (more) open_unit(open[num_open++], next);
      } else if (num_open == 0 && (!looks || ready_tiles() == num_x_tiles_)) {
        return;  // the one that looks stays for the others
      } else if (looks) {
        look(true);
      } else if (++waits % 64 != 0) {
        __builtin_ia32_pause();
      } else {
        std::this_thread::yield();
      }
    }
  }

  std::uint32_t ready_tiles() const noexcept { return ready_tiles_.load(std::memory_order_acquire); }

  void open_unit(OpenUnit& open, std::uint32_t unit) noexcept {
    open.unit = unit;
    open.next_tile = 0;
    const GateUpUnit& what = buffers_.units.get()[unit];
    fill_floats(open.sums, std::size_t{buffers_.active.get()[what.expert].count} * what.width(), 0.0f);
  }

  // Goes on with a piece up to tile `end`, and finishes it when that is the last.
  void gate_up(std::uint32_t thread, OpenUnit& open, std::uint32_t end) noexcept {
    const GateUpUnit& unit = buffers_.units.get()[open.unit];
    const ActiveExpert& expert = buffers_.active.get()[unit.expert];
    const Pair* pairs = buffers_.pairs.get() + expert.begin;
    const float** in = buffers_.in.get() + std::size_t{thread} * max_count_;
    float** out = buffers_.out.get() + std::size_t{thread} * max_count_;
    for (std::uint32_t i = 0; i < expert.count; ++i) {
      in[i] = buffers_.x.get() + pairs[i].token * x_stride_;
      out[i] = open.sums + std::size_t{i} * unit.width();
    }
    const bool* shifted = buffers_.x_shifted.get();
    while (open.next_tile < end) {
      const std::uint32_t begin = open.next_tile;
      do ++open.next_tile;
      while (open.next_tile < end && shifted[open.next_tile] == shifted[begin]);
      accumulate(thread, expert.section->gate_up, unit.panel0, unit.num_panels, begin, open.next_tile - begin, in, out,
                 expert.count, shifted[begin], unit.panel_gap);
    }
    if (end < num_x_tiles_) return;
    for (std::uint32_t i = 0; i < expert.count; ++i) {
      float* row = buffers_.h.get() + expert.h_offset + std::size_t{i} * expert.h_stride;
      for (std::uint32_t p = 0; p < unit.width() / kPanelRows; p += 2) {
        const std::uint32_t panel = unit.panel0 + (p < unit.num_panels ? p : p - unit.num_panels + unit.panel_gap);
        kernels_.silu_mul(out[i] + p * kPanelRows, out[i] + (p + 1) * kPanelRows, pairs[i].weight,
                          row + panel / 2 * kPanelRows, kPanelRows);
      }
      if (unit.panel0 == 0) {  // the filling between rows is read by can_shift()
        fill_floats(row + expert.section->num_cols, expert.h_stride - expert.section->num_cols, 0.0f);
      }
    }
  }

  void down(std::uint32_t thread, std::uint32_t panel0, std::uint32_t num_panels, const float* h, bool shifted) noexcept {
    const float** in = buffers_.in.get() + std::size_t{thread} * max_count_;
    float** out = buffers_.out.get() + std::size_t{thread} * max_count_;
    float* sums = buffers_.sums.get() + thread * sums_floats_;
    const std::uint32_t width = num_panels * kPanelRows;
    fill_floats(sums, std::size_t{batch_.num_tokens} * width, 0.0f);
    for (std::uint32_t e = 0; e < num_active_; ++e) {
      const ActiveExpert& expert = buffers_.active.get()[e];
      const Pair* pairs = buffers_.pairs.get() + expert.begin;
      for (std::uint32_t i = 0; i < expert.count; ++i) {
        in[i] = h + expert.h_offset + std::size_t{i} * expert.h_stride;
        out[i] = sums + std::size_t{pairs[i].token} * width;
      }
      const MatrixView& matrix = expert.section->down;
      accumulate(thread, matrix, panel0, num_panels, 0, matrix.num_tiles, in, out, expert.count, shifted);
    }
    const std::uint32_t row0 = panel0 * kPanelRows;
    const std::uint32_t num_rows = std::min(width, batch_.hidden - row0);
    for (std::uint32_t t = 0; t < batch_.num_tokens; ++t)
      copy_floats(sums + std::size_t{t} * width, y_ + std::size_t{t} * batch_.hidden + row0, num_rows);
    if (stream_ != nullptr) stream_->rows_ready(row0, num_rows);
  }

  void accumulate(std::uint32_t thread, const MatrixView& matrix, std::uint32_t panel0, std::uint32_t num_panels,
                  std::uint32_t tile0, std::uint32_t num_tiles, const float* const* in, float* const* out,
                  std::uint32_t count, bool shifted, std::uint32_t panel_gap = 0) noexcept {
    kernels_.accumulate({&matrix, panel0, num_panels, tile0, num_tiles, in, out, count,
                         shifted && has_scales(matrix.format), buffers_.tiles.get() + std::size_t{thread} * kTileFloats,
                         panel_gap, prefetch_bytes_});
  }

  const Kernels& kernels_;
  Team& team_;
  const FfnBatch& batch_;
  float* y_;
  Workspace::Buffers& buffers_;
  FfnStream* stream_;
  std::uint32_t num_active_ = 0, num_units_ = 0, max_count_ = 1;
  std::uint32_t num_x_tiles_ = 0, max_open_ = 1;
  std::size_t num_pairs_ = 0, h_floats_ = 0, x_padded_ = 0, x_stride_ = 0, sums_floats_ = 0;
  MatrixView down_;
  std::uint32_t groups_a_unit_ = 1;
  const std::uint32_t prefetch_bytes_ = prefetch_bytes();
  bool scaled_ = true, may_shift_ = false, x_is_whole_ = true;
  std::atomic<bool> given_up_{false};
  std::atomic<std::uint32_t> ready_tiles_{0};  // of x, along k
  std::atomic<std::uint32_t> next_gate_up_{0};
  std::atomic<std::uint32_t> next_down_{0};
};

}  // namespace

bool ffn_part(const Kernels& kernels, Team& team, std::span<const PackedChunk> chunks, const FfnBatch& batch, float* y,
              Workspace& workspace, FfnStream* stream) {
  if (batch.num_tokens == 0) return true;
  FfnCall call(kernels, team, chunks, batch, y, workspace.buffers(), stream);
  if (!call.given_up()) team.run(call);
  return !call.given_up();
}

}  // namespace duckfleet::kernels
