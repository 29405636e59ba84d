// The chunks this duck holds, packed, by the digest of their logical content; in memory, or as files that outlive us.
//
// Safe from several threads. A chunk lives as long as somebody holds its pointer, dropped or not.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "chunk.hpp"
#include "control_frame.hpp"
#include "digest.hpp"
#include "page_buffer.hpp"

namespace duckfleet::duckd {

struct StoredChunk {
  Digest digest;
  PageBuffer memory;
  kernels::PackedChunk packed;  // a view of `memory`
};

class ChunkStore {
 public:
  // `directory` empty: memory only. Files of an earlier process are taken over; unusable ones are removed and logged.
  explicit ChunkStore(std::string directory);

  // False when the directory cannot be used; `error` says why.
  bool open(std::string& error);

  bool has(const Digest& digest) const;
  std::shared_ptr<const StoredChunk> find(const Digest& digest) const;

  // Packs a logical chunk whose digest has been verified. Nothing: it is held now.
  std::optional<wire::Refusal> put(const Digest& digest, std::span<const std::byte> logical);

  // Forgets a chunk and its file; false when it was not held.
  bool drop(const Digest& digest);
  void drop_all();

  struct Totals {
    std::uint32_t num_chunks = 0;
    std::uint64_t packed_bytes = 0;
  };
  Totals totals() const;

  // The assignment as it came, kept beside the chunks so that a restarted duck is still placed. Memory only: not kept.
  void keep_assignment(std::span<const std::byte> assignment);
  std::optional<PageBuffer> kept_assignment() const;

 private:
  // `file` empty: memory only.
  std::optional<PageBuffer> memory_for(std::size_t size, const std::string& file, wire::Refusal& refusal) const;
  // Where a chunk is packed until it is whole: a name that no other connection packs the same chunk under.
  std::string new_partial(const Digest& digest);
  std::string path(const Digest& digest, const char* suffix) const;

  const std::string directory_;
  std::atomic<std::uint64_t> num_partials_ = 0;
  mutable std::mutex mutex_;
  std::map<Digest, std::shared_ptr<const StoredChunk>> chunks_;
};

// MemAvailable, or 0 when it cannot be told.
std::uint64_t memory_available_bytes();
std::uint64_t memory_total_bytes();

}  // namespace duckfleet::duckd
