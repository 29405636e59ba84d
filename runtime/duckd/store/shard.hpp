// The assigned chunks as the data plane looks them up, and what host and duck must agree upon. Immutable once built.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "chunk.hpp"
#include "chunk_store.hpp"
#include "control_frame.hpp"
#include "digest.hpp"
#include "wire.hpp"

namespace duckfleet::duckd {

struct Assignment {
  wire::Assign header{};
  std::vector<Digest> digests;
};

// Bounds every field of an Assign payload.
std::optional<wire::Refusal> parse_assignment(std::span<const std::byte> payload, Assignment& assignment);

struct Part {
  std::uint16_t index;
  std::vector<kernels::PackedChunk> chunks;  // every expert of (layer, slice, part)
};

using Slice = std::vector<Part>;  // ascending part

class Shard {
 public:
  // Nothing but a refusal when a chunk is missing or does not fit the assignment.
  static std::shared_ptr<const Shard> build(const Assignment& assignment, const ChunkStore& store, wire::Refusal& refusal);

  const wire::Assign& assignment() const noexcept { return assignment_; }
  const Digest& digest() const noexcept { return digest_; }
  std::size_t num_chunks() const noexcept { return chunks_.size(); }
  bool uses(const Digest& digest) const noexcept;
  bool is_within(const std::set<Digest>& digests) const noexcept;

  // Whether this is the other's place in the same model, with all its chunks and perhaps more.
  bool extends(const Shard& other) const;

  // Null when nothing of it is held.
  const Slice* find(std::uint32_t layer, std::uint32_t slice) const noexcept;

 private:
  wire::Assign assignment_{};
  Digest digest_{};
  std::vector<std::shared_ptr<const StoredChunk>> chunks_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, Slice> slices_;
};

// Bounds every field of a Configure, then compares it with the shard (null: none assigned). Each disagreement has its code.
std::optional<wire::Refusal> check_session(const wire::Configure& config, const Shard* shard);

}  // namespace duckfleet::duckd
