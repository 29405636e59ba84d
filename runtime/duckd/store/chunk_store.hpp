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
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "chunk.hpp"
#include "control_frame.hpp"
#include "digest.hpp"
#include "page_buffer.hpp"

namespace duckfleet::duckd {

struct StoredChunk {
  StoredChunk(const Digest& d, PageBuffer m, kernels::PackedChunk p, std::uint64_t sum)
      : digest(d), memory(std::move(m)), packed(std::move(p)), checksum(sum) {}

  const Digest digest;
  PageBuffer memory;
  const kernels::PackedChunk packed;  // a view of `memory`
  std::atomic<std::uint64_t> checksum;  // of the packed bytes, taken when they were packed
  std::atomic<bool> damaged = false;    // its bytes are not those any more
  std::atomic<std::uint32_t> num_mends = 0;
};

class ChunkStore {
 public:
  // `directory` empty: memory only. Files of an earlier process are taken over; unusable ones are removed and logged.
  explicit ChunkStore(std::string directory);

  // False when the directory cannot be used; `error` says why.
  bool open(std::string& error);

  // Held and sound: a damaged chunk counts as lacking, so that it is sent again.
  bool has(const Digest& digest) const;
  std::shared_ptr<const StoredChunk> find(const Digest& digest) const;

  // Packs a logical chunk whose digest has been verified. Nothing: it is held now. A damaged one is mended in its place,
  // under the feet of a session that computes with it: the bytes that were right stay what they are.
  std::optional<wire::Refusal> put(const Digest& digest, std::span<const std::byte> logical);

  // Forgets a chunk and its file; false when it was not held.
  bool drop(const Digest& digest);
  // All but these; how many that were.
  std::size_t drop_others(const std::set<Digest>& kept);
  void drop_all();

  // The chunk's bytes have changed since it was mended `num_mends` times; false when that is known, or not so any more.
  bool report_damage(const Digest& digest, std::uint32_t num_mends);

  // Every chunk, or the damaged ones, in the order of the digests.
  std::vector<Digest> digests() const;
  std::vector<Digest> damaged() const;

  struct Totals {
    std::uint32_t num_chunks = 0;
    std::uint64_t num_mends = 0;
    std::uint64_t packed_bytes = 0;
  };
  Totals totals() const;

  // The assignment as it came, kept beside the chunks so that a restarted duck is still placed. Memory only: not kept.
  void keep_assignment(std::span<const std::byte> assignment);
  std::optional<PageBuffer> kept_assignment() const;
  void forget_assignment();

 private:
  // `file` empty: memory only.
  std::optional<PageBuffer> memory_for(std::size_t size, const std::string& file, wire::Refusal& refusal) const;
  // Where a chunk is packed until it is whole: a name that no other connection packs the same chunk under.
  std::string new_partial(const Digest& digest);
  std::string path(const Digest& digest, const char* suffix) const;
  std::shared_ptr<StoredChunk> mutable_chunk(const Digest& digest) const;
  std::optional<wire::Refusal> mend(StoredChunk& chunk, std::span<const std::byte> logical, std::size_t packed_bytes);

  const std::string directory_;
  std::atomic<std::uint64_t> num_partials_ = 0;
  mutable std::mutex mutex_;
  std::map<Digest, std::shared_ptr<StoredChunk>> chunks_;
};

// MemAvailable, or 0 when it cannot be told.
std::uint64_t memory_available_bytes();
std::uint64_t memory_total_bytes();

}  // namespace duckfleet::duckd
