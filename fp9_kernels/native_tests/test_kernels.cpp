// Native tests, made to run under the address and undefined-behaviour sanitizers: no bytes crash the parsers, no kernel
// reads or writes past its buffers, bits agree.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>

#include "chunk.hpp"
#include "chunk_bytes.hpp"
#include "dispatch.hpp"
#include "ffn.hpp"
#include "matrix.hpp"

namespace {

using namespace duckfleet::kernels;
using duckfleet::kernels::testing::make_chunk;
using duckfleet::kernels::testing::SectionSpec;

int num_failures = 0;

#define CHECK(condition)                                                              \
  do {                                                                                \
    if (!(condition)) {                                                               \
      std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      ++num_failures;                                                                 \
    }                                                                                 \
  } while (false)

constexpr Format kFormats[] = {Format::kF32, Format::kBf16, Format::kE4m3, Format::kFp9};

struct Packed {
  WeightMemory memory;
  PackedChunk view;
};

std::optional<Packed> pack(const std::vector<std::byte>& logical) {
  ChunkInfo info;
  if (parse_chunk(logical, info)) return std::nullopt;
  WeightMemory memory(info.packed_bytes);
  if (pack_chunk(logical, memory.bytes())) return std::nullopt;
  std::optional<PackedChunk> view = PackedChunk::open(memory.bytes());
  CHECK(view.has_value());
  if (!view) return std::nullopt;
  return Packed{std::move(memory), std::move(*view)};
}

std::vector<std::byte> unpacked(const PackedChunk& chunk) {
  std::vector<std::byte> logical(chunk.logical_bytes());
  chunk.unpack(logical);
  return logical;
}

void unpacking_gives_back_every_byte() {
  std::mt19937 rng(23);
  for (const Format format : {Format::kF32, Format::kBf16, Format::kE4m3, Format::kFp9}) {
    for (const std::uint32_t hidden : {1u, 15u, 16u, 127u, 144u, 300u}) {
      const auto chunk = make_chunk(format, hidden, {{0, 0, 16}, {2, 112, 48}, {3, 16, 0}, {7, 240, 272}}, rng);
      const std::optional<Packed> packed = pack(chunk);
      CHECK(packed.has_value());
      CHECK(unpacked(packed->view) == chunk);
    }
  }
}

void mutated_chunks_never_crash() {
  std::mt19937 rng(1);
  std::size_t accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    const Format format = kFormats[rng() % 4];
    std::vector<std::byte> chunk = make_chunk(format, 1 + rng() % 20, {{0, 112, 16}, {3, 0, 16 * static_cast<std::uint32_t>(rng() % 2)}}, rng);
    for (std::uint32_t edits = rng() % 4; edits > 0; --edits) {
      const std::size_t limit = rng() % 2 ? 96 : chunk.size();
      chunk[rng() % std::min(limit, chunk.size())] = static_cast<std::byte>(rng() % 4 ? rng() % 32 : rng());
    }
    if (rng() % 8 == 0) chunk.resize(rng() % (chunk.size() + 1));
    if (rng() % 8 == 0) chunk.resize(chunk.size() + rng() % 40);
    chunk.shrink_to_fit();  // so that the sanitizer sees a read past the end
    const auto packed = pack(chunk);
    if (!packed) continue;
    ++accepted;
    CHECK(unpacked(packed->view) == chunk);
  }
  CHECK(accepted > 1000);
}

void a_packed_chunk_opens_only_whole() {
  std::mt19937 rng(2);
  for (const Format format : kFormats) {
    std::optional<Packed> packed = pack(make_chunk(format, 40, {{1, 0, 32}, {9, 16, 16}}, rng));
    CHECK(packed.has_value());
    const std::span<const std::byte> bytes = packed->memory.bytes();
    CHECK(packed->view.sections().size() == 2 && packed->view.sections()[1].expert == 9);
    for (const std::size_t length : {std::size_t{0}, std::size_t{63}, std::size_t{64}, std::size_t{128}, bytes.size() - 64})
      CHECK(!PackedChunk::open(bytes.first(length)));
    CHECK(!PackedChunk::open(bytes.subspan(32)));
    for (int round = 0; round < 2000; ++round) {
      // The header and table only; the rest is weights, where any byte is as good.
      WeightMemory copy(bytes.size());
      std::copy(bytes.begin(), bytes.end(), copy.data());
      copy.data()[rng() % 96] = static_cast<std::byte>(rng());
      PackedChunk::open(copy.bytes());
    }
  }
}

// Every implementation, thread count and batch over exactly sized heap buffers.
void ffn_stays_within_its_buffers() {
  std::mt19937 rng(3);
  for (const Format format : kFormats) {
    for (const std::uint32_t hidden : {1u, 15u, 16u, 33u, 150u}) {
      std::vector<Packed> parts;
      parts.push_back(*pack(make_chunk(format, hidden, {{0, 0, 16}, {2, 112, 48}}, rng)));
      parts.push_back(*pack(make_chunk(format, hidden, {{1, 64, 80}, {5, 0, 0}}, rng)));
      const std::vector<PackedChunk> chunks{parts[0].view, parts[1].view};
      for (const std::uint32_t num_tokens : {1u, 2u, 6u, 7u, 20u}) {
        std::vector<float> x(std::size_t{num_tokens} * hidden);
        for (float& value : x) value = static_cast<float>(rng() % 1000) * 1e-3f - 0.5f;
        std::vector<Route> routes;
        for (std::uint32_t t = 0; t < num_tokens; ++t)
          for (const std::uint32_t expert : {0u, 1u + t % 2, 7u}) routes.push_back({expert, 0.25f});
        std::vector<float> first;
        for (const Kernels* kernels : implementations()) {
          for (const std::uint32_t threads : {1u, 3u}) {
            Team team(threads, {}, 5);
            Workspace workspace;
            const auto y = std::make_unique<float[]>(x.size());
            ffn_part(*kernels, team, chunks, {num_tokens, hidden, 3, x.data(), routes.data()}, y.get(), workspace);
            const std::vector<float> result(y.get(), y.get() + x.size());
            if (first.empty()) first = result;
            CHECK(std::equal(result.begin(), result.end(), first.begin(),
                             [](float a, float b) { return std::bit_cast<unsigned>(a) == std::bit_cast<unsigned>(b); }));
          }
        }
      }
    }
  }
}

// Lets activations come in by `step` columns a look, and counts the rows that are said to be final.
struct TrickledStream final : FfnStream {
  TrickledStream(const std::vector<float>& x, std::uint32_t num_tokens, std::uint32_t hidden, std::uint32_t step)
      : seen(hidden), arrived(x.size(), std::numeric_limits<float>::quiet_NaN()), x_(x), num_tokens_(num_tokens),
        hidden_(hidden), step_(step) {}

  std::uint32_t columns_ready(bool) noexcept override {
    const std::uint32_t end = std::min(hidden_, columns_ + step_);
    for (std::uint32_t t = 0; t < num_tokens_; ++t)
      std::copy(&x_[t * hidden_ + columns_], &x_[t * hidden_ + end], &arrived[t * hidden_ + columns_]);
    columns_ = end;
    return ++num_looks == give_up_at ? kGiveUp : columns_;
  }
  void rows_ready(std::uint32_t row0, std::uint32_t num_rows) noexcept override {
    for (std::uint32_t row = row0; row < row0 + num_rows; ++row) seen[row].fetch_add(1);
  }

  int num_looks = 0, give_up_at = 0;
  std::vector<std::atomic<int>> seen;
  std::vector<float> arrived;

 private:
  const std::vector<float>& x_;
  const std::uint32_t num_tokens_, hidden_, step_;
  std::uint32_t columns_ = 0;
};

void activations_that_trickle_in_give_the_same_bits() {
  std::mt19937 rng(4);
  const std::uint32_t hidden = 1000;
  for (const Format format : {Format::kE4m3, Format::kBf16}) {
    const Packed packed = *pack(make_chunk(format, hidden, {{0, 0, 32}, {1, 0, 80}, {3, 16, 16}}, rng));
    for (const std::uint32_t num_tokens : {1u, 3u, 9u}) {
      std::vector<float> x(num_tokens * hidden);
      for (float& value : x) value = static_cast<float>(rng() % 2001) / 1000.0f - 1.0f;
      x[300] = 1e20f;  // its tile alone cannot be shifted
      std::vector<Route> routes;
      for (std::uint32_t t = 0; t < num_tokens; ++t) routes.insert(routes.end(), {{t % 2, 0.5f}, {3, 0.25f}});
      for (const Kernels* kernels : implementations()) {
        for (const std::uint32_t threads : {1u, 2u, 5u}) {
          Team team(threads, {}, 5);
          Workspace workspace;
          std::vector<float> expected(x.size());
          ffn_part(*kernels, team, {&packed.view, 1}, {num_tokens, hidden, 2, x.data(), routes.data()}, expected.data(),
                   workspace);
          for (const std::uint32_t step : {16u, 200u, 999u, 1000u}) {
            TrickledStream stream(x, num_tokens, hidden, step);
            std::vector<float> y(x.size(), std::numeric_limits<float>::quiet_NaN());
            CHECK(ffn_part(*kernels, team, {&packed.view, 1},
                           {num_tokens, hidden, 2, stream.arrived.data(), routes.data()}, y.data(), workspace, &stream));
            CHECK(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)) == 0);
            CHECK(std::all_of(stream.seen.begin(), stream.seen.end(), [](const auto& count) { return count == 1; }));
          }
        }
      }
    }
  }
}

void a_stream_that_gives_up_ends_the_work() {
  std::mt19937 rng(6);
  const std::uint32_t hidden = 1000;
  const Packed packed = *pack(make_chunk(Format::kE4m3, hidden, {{0, 0, 64}}, rng));
  const std::vector<float> x(hidden, 0.5f);
  std::vector<float> y(hidden);
  for (const std::uint32_t threads : {1u, 3u}) {
    Team team(threads);
    Workspace workspace;
    for (const std::uint32_t step : {0u, 16u, 1000u}) {
      for (const int give_up_at : {1, 2, 5}) {
        TrickledStream stream(x, 1, hidden, step);
        stream.give_up_at = give_up_at;
        const bool done = ffn_part(*select("").kernels, team, {&packed.view, 1},
                                   {1, hidden, 0, stream.arrived.data(), nullptr}, y.data(), workspace, &stream);
        CHECK(!done || stream.num_looks < give_up_at);
      }
    }
  }
}

void a_team_runs_every_thread_between_barriers() {
  for (const std::uint32_t threads : {1u, 2u, 4u}) {
    for (const std::uint32_t spin_us : {0u, 20u}) {
      Team team(threads, {}, spin_us);
      std::atomic<std::uint32_t> count{0};
      bool whole = true;
      auto body = [&](std::uint32_t) noexcept {
        for (std::uint32_t phase = 1; phase <= 3; ++phase) {
          count.fetch_add(1);
          team.barrier();
          if (count.load() != phase * threads) whole = false;
          team.barrier();
        }
      };
      for (int run = 0; run < 200; ++run) {
        count = 0;
        team.run(body);
      }
      CHECK(whole);
    }
  }
}

void the_callers_float_mode_does_not_matter() {
  std::mt19937 rng(5);
  const Packed packed = *pack(make_chunk(Format::kE4m3, 64, {{0, 0, 16}}, rng));
  std::vector<float> x(64);
  for (float& value : x) value = 1e-38f * static_cast<float>(rng() % 100);
  std::vector<float> before(64), after(64);
  Team team(2);
  Workspace workspace;
  const FfnBatch batch{1, 64, 0, x.data(), nullptr};
  ffn_part(*select("").kernels, team, {&packed.view, 1}, batch, before.data(), workspace);
  const unsigned mode = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(mode | 0xE040);  // flush to zero, subnormals are zero, round toward zero
  ffn_part(*select("").kernels, team, {&packed.view, 1}, batch, after.data(), workspace);
  CHECK(__builtin_ia32_stmxcsr() == (mode | 0xE040));
  __builtin_ia32_ldmxcsr(mode);
  for (std::size_t i = 0; i < 64; ++i) CHECK(std::bit_cast<unsigned>(before[i]) == std::bit_cast<unsigned>(after[i]));
}

void selection_never_falls_back() {
  CHECK(select("scalar").kernels != nullptr && select("scalar").kernels->name == std::string_view("scalar"));
  CHECK(select("nonsense").kernels == nullptr && !select("nonsense").error.empty());
}

}  // namespace

int main() {
  unpacking_gives_back_every_byte();
  mutated_chunks_never_crash();
  a_packed_chunk_opens_only_whole();
  ffn_stays_within_its_buffers();
  activations_that_trickle_in_give_the_same_bits();
  a_stream_that_gives_up_ends_the_work();
  a_team_runs_every_thread_between_barriers();
  the_callers_float_mode_does_not_matter();
  selection_never_falls_back();
  std::printf("%d failures\n", num_failures);
  return num_failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
