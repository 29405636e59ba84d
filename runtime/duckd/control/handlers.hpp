// The control plane's verbs: a frame in, an answer out. No socket here, so that tests and the fuzzer can drive it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chunk_store.hpp"
#include "control_frame.hpp"
#include "counters.hpp"
#include "digest.hpp"
#include "offers.hpp"
#include "page_buffer.hpp"
#include "placement.hpp"
#include "probe.hpp"

namespace duckfleet::duckd {

// Feeds the frames of another duck's answer to `take` until that returns false; empty, or why no more came.
using FetchFrames =
    std::function<std::string(const wire::ChunkFetch& request, const std::function<bool(const wire::ControlFrame&)>& take)>;

// What all connections share.
struct DuckContext {
  ChunkStore& store;
  Placement& placement;
  Counters& counters;
  std::function<std::string()> stats_json;
  std::function<std::string(const probe::Measuring&)> probe_json;
  std::function<void()> shut_down;
  FetchFrames fetch;
  std::uint64_t instance = 0;
  std::uint16_t num_threads = 0, num_cpus = 0, data_port = 0;
  std::string kernels, version, hostname;
  Offers offers{};
  std::atomic<std::uint64_t> staged_bytes{0};  // of chunks that come or go, of all connections
};

// A chunk's share of the memory for chunks that come or go; held while this lives, unless there was none.
class StagedBytes {
 public:
  StagedBytes(DuckContext& duck, std::uint64_t num_bytes);
  ~StagedBytes();
  StagedBytes(const StagedBytes&) = delete;
  StagedBytes& operator=(const StagedBytes&) = delete;

  const std::optional<wire::Refusal>& refusal() const noexcept { return refusal_; }

 private:
  DuckContext& duck_;
  const std::uint64_t num_bytes_;
  std::optional<wire::Refusal> refusal_;
};

struct Answer {
  wire::ControlType type;
  std::vector<std::byte> payload;
};

// The verbs as one connection may use them; holds its unfinished upload.
class ControlHandlers {
 public:
  explicit ControlHandlers(DuckContext& duck) noexcept : duck_(duck) {}
  ControlHandlers(const ControlHandlers&) = delete;
  ControlHandlers& operator=(const ControlHandlers&) = delete;

  // Nothing: the frame is not answered. The frame's header has been checked.
  std::optional<Answer> handle(const wire::ControlFrame& frame);

 private:
  struct Upload {
    Upload(DuckContext& duck, const Digest& name, std::uint64_t num_bytes) : digest(name), staged(duck, num_bytes) {}

    const Digest digest;
    const StagedBytes staged;
    PageBuffer memory{};
    std::uint64_t received = 0;
    Hasher hasher;
    std::optional<wire::Refusal> failure;  // answered at the end; data is not answered
  };

  Answer identity(std::span<const std::byte> payload);
  Answer have(std::span<const std::byte> payload);
  Answer chunk_begin(std::span<const std::byte> payload);
  void chunk_data(std::span<const std::byte> payload);
  Answer chunk_end(std::span<const std::byte> payload);
  Answer chunk_offer(std::span<const std::byte> payload);
  Answer chunk_fetch(std::span<const std::byte> payload);
  Answer chunk_drop(std::span<const std::byte> payload);
  Answer chunk_keep(std::span<const std::byte> payload);
  Answer probe(std::span<const std::byte> payload);
  Answer shutdown(std::span<const std::byte> payload);
  std::optional<wire::Refusal> begin_upload(const Digest& digest, std::uint64_t num_bytes);
  std::optional<wire::Refusal> finish_upload();
  std::optional<wire::Refusal> fetch(const wire::ChunkFetch& request);
  Answer refuse(wire::Refusal refusal);

  DuckContext& duck_;
  std::unique_ptr<Upload> upload_;
};

}  // namespace duckfleet::duckd
