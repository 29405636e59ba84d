#include "chunk_store.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "checksum.hpp"
#include "log.hpp"

namespace duckfleet::duckd {
namespace fs = std::filesystem;
namespace {

constexpr const char* kSuffix = ".chunk";
constexpr const char* kPartial = ".partial";
constexpr const char* kAssignmentFile = "/assignment";
constexpr std::uint64_t kReserveBytes = 64ull << 20;  // left to the rest of the box

std::uint64_t meminfo_bytes(std::string_view wanted) {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  std::uint64_t kib = 0;
  while (file >> key >> kib) {
    std::getline(file, unit);
    if (key == wanted) return kib * 1024;
  }
  return 0;
}

// What a file has after the packed chunk: a bit that flipped on the disk, or while the daemon was down, must not become
// a wrong token. Against damage, not against somebody who may write there.
struct Seal {
  std::uint64_t magic;
  std::uint64_t checksum;
};
constexpr std::uint64_t kSealMagic = 0x31'4C'41'45'53'46'44ull;  // "DFSEAL1"

// The chunk of a file, or why it is none.
std::optional<kernels::PackedChunk> open_sealed(std::span<const std::byte> file, Seal& seal, std::string& reason) {
  auto packed = kernels::PackedChunk::open(file);
  if (!packed || file.size() != packed->packed_bytes() + sizeof seal) {
    reason = "not a packed chunk";
    return std::nullopt;
  }
  std::memcpy(&seal, file.data() + packed->packed_bytes(), sizeof seal);
  if (seal.magic != kSealMagic || seal.checksum != Checksum::of(file.first(packed->packed_bytes()))) {
    reason = "damaged";
    return std::nullopt;
  }
  return packed;
}

}  // namespace

std::uint64_t memory_available_bytes() { return meminfo_bytes("MemAvailable:"); }
std::uint64_t memory_total_bytes() { return meminfo_bytes("MemTotal:"); }

ChunkStore::ChunkStore(std::string directory) : directory_(std::move(directory)) {}

std::string ChunkStore::path(const Digest& digest, const char* suffix) const {
  return directory_ + "/" + to_hex(digest) + suffix;
}

bool ChunkStore::open(std::string& error) {
  if (directory_.empty()) return true;
  std::error_code failure;
  fs::create_directories(directory_, failure);
  if (failure || access(directory_.c_str(), R_OK | W_OK | X_OK) != 0) {
    error = "the store " + directory_ + " cannot be used: " + (failure ? failure.message() : std::strerror(errno));
    return false;
  }
  chmod(directory_.c_str(), 0700);
  for (const auto& entry : fs::directory_iterator(directory_, failure)) {
    const fs::path& file = entry.path();
    if (file.extension() == kPartial) {
      unlink(file.c_str());  // an earlier process was ended while it packed
      continue;
    }
    if (file.extension() != kSuffix) continue;
    const auto digest = digest_from_hex(file.stem().string());
    std::string reason = "its name is no digest";
    auto memory = digest ? PageBuffer::map_file(file, reason) : std::nullopt;
    Seal seal{};
    auto packed = memory ? open_sealed(memory->bytes(), seal, reason) : std::nullopt;
    if (!packed) {
      log_warn("chunk_file_removed").with("file", file.string()).with("reason", reason);
      unlink(file.c_str());
      continue;
    }
    madvise(memory->bytes().data(), memory->size(), MADV_HUGEPAGE);
    auto chunk = std::make_shared<StoredChunk>(*digest, std::move(*memory), std::move(*packed), seal.checksum);
    chunks_.emplace(*digest, std::move(chunk));
  }
  const auto held = totals();
  log_info("store_opened").with("directory", directory_).with("chunks", held.num_chunks).with("bytes", held.packed_bytes);
  return true;
}

bool ChunkStore::has(const Digest& digest) const {
  const std::lock_guard lock(mutex_);
  const auto found = chunks_.find(digest);
  return found != chunks_.end() && !found->second->damaged;
}

std::shared_ptr<const StoredChunk> ChunkStore::find(const Digest& digest) const {
  const std::lock_guard lock(mutex_);
  const auto found = chunks_.find(digest);
  return found == chunks_.end() ? nullptr : found->second;
}

std::optional<PageBuffer> ChunkStore::memory_for(std::size_t size, const std::string& file,
                                                 wire::Refusal& refusal) const {
  const std::uint64_t available = memory_available_bytes();
  if (available != 0 && size + kReserveBytes > available) {
    refusal = {wire::ErrorCode::kNoMemory, "the chunk needs " + std::to_string(size) + " bytes and " +
                                               std::to_string(available) + " are available"};
    return std::nullopt;
  }
  std::string error = "no address space";
  auto memory = file.empty() ? PageBuffer::anonymous(size) : PageBuffer::create_file(file, size + sizeof(Seal), error);
  if (!memory) refusal = {wire::ErrorCode::kNoMemory, "no room for a chunk of " + std::to_string(size) + " bytes: " + error};
  return memory;
}

std::string ChunkStore::new_partial(const Digest& digest) {
  if (directory_.empty()) return {};
  const std::string writer = "." + std::to_string(getpid()) + "-" + std::to_string(num_partials_.fetch_add(1));
  return path(digest, (writer + kPartial).c_str());
}

std::optional<wire::Refusal> ChunkStore::put(const Digest& digest, std::span<const std::byte> logical) {
  if (has(digest)) return std::nullopt;
  kernels::ChunkInfo info;
  if (auto error = kernels::parse_chunk(logical, info)) return wire::Refusal{wire::ErrorCode::kChunkInvalid, *error};
  if (const auto held = mutable_chunk(digest)) return mend(*held, logical, info.packed_bytes);
  wire::Refusal refusal;
  const std::string partial = new_partial(digest);
  auto memory = memory_for(info.packed_bytes, partial, refusal);
  if (!memory) return refusal;
  auto error = kernels::pack_chunk(logical, memory->bytes());
  auto packed = error ? std::nullopt : kernels::PackedChunk::open(memory->bytes());
  if (!packed) {
    if (!partial.empty()) unlink(partial.c_str());
    return wire::Refusal{wire::ErrorCode::kChunkInvalid, error.value_or("the packed chunk does not open")};
  }
  bool on_disk = false;
  const std::size_t size = packed->packed_bytes();
  const Seal seal{kSealMagic, Checksum::of(memory->bytes().first(size))};
  if (!partial.empty()) {
    std::memcpy(memory->bytes().data() + size, &seal, sizeof seal);
    // The name may only ever belong to whole content, also after a power cut on a store that is on disk.
    on_disk = msync(memory->bytes().data(), memory->size(), MS_SYNC) == 0;
  }
  auto chunk = std::make_shared<StoredChunk>(digest, std::move(*memory), std::move(*packed), seal.checksum);
  const std::lock_guard lock(mutex_);
  const bool is_new = chunks_.emplace(digest, std::move(chunk)).second;  // or another connection brought it meanwhile
  if (partial.empty()) return std::nullopt;
  if (is_new && on_disk && std::rename(partial.c_str(), path(digest, kSuffix).c_str()) == 0) return std::nullopt;
  if (is_new) log_warn("chunk_file_not_kept").with("digest", to_hex(digest)).with("reason", std::strerror(errno));
  unlink(partial.c_str());
  return std::nullopt;
}

std::vector<Digest> ChunkStore::damaged() const {
  const std::lock_guard lock(mutex_);
  std::vector<Digest> found;
  for (const auto& [digest, chunk] : chunks_) {
    if (chunk->damaged) found.push_back(digest);
  }
  return found;
}

std::shared_ptr<StoredChunk> ChunkStore::mutable_chunk(const Digest& digest) const {
  const std::lock_guard lock(mutex_);
  const auto found = chunks_.find(digest);
  return found == chunks_.end() ? nullptr : found->second;
}

std::optional<wire::Refusal> ChunkStore::mend(StoredChunk& chunk, std::span<const std::byte> logical,
                                              std::size_t packed_bytes) {
  auto fresh = PageBuffer::anonymous(packed_bytes);
  if (!fresh) return wire::Refusal{wire::ErrorCode::kNoMemory, "no address space to mend a chunk"};
  if (auto error = kernels::pack_chunk(logical, fresh->bytes())) return wire::Refusal{wire::ErrorCode::kChunkInvalid, *error};
  const std::lock_guard lock(mutex_);
  if (!chunk.damaged) return std::nullopt;  // another connection was quicker
  std::string error;
  if (packed_bytes != chunk.packed.packed_bytes() || !chunk.memory.make_writable(error)) {
    return wire::Refusal{wire::ErrorCode::kInternal, "a damaged chunk cannot be written to: " + error};
  }
  const Seal seal{kSealMagic, Checksum::of(fresh->bytes())};
  const auto room = chunk.memory.bytes();
  for (std::size_t at = 0; at < packed_bytes; at += Checksum::kBlockBytes) {  // the packed form is made of such blocks
    if (std::memcmp(room.data() + at, fresh->bytes().data() + at, Checksum::kBlockBytes) != 0) {
      std::memcpy(room.data() + at, fresh->bytes().data() + at, Checksum::kBlockBytes);
    }
  }
  if (room.size() >= packed_bytes + sizeof seal) std::memcpy(room.data() + packed_bytes, &seal, sizeof seal);
  if (!directory_.empty()) msync(room.data(), room.size(), MS_SYNC);
  chunk.checksum = seal.checksum;
  ++chunk.num_mends;
  chunk.damaged = false;
  log_info("chunk_mended").with("digest", to_hex(chunk.digest));
  return std::nullopt;
}

bool ChunkStore::report_damage(const Digest& digest, std::uint32_t num_mends) {
  const std::lock_guard lock(mutex_);
  const auto found = chunks_.find(digest);
  if (found == chunks_.end() || found->second->damaged || found->second->num_mends != num_mends) return false;
  found->second->damaged = true;
  return true;
}

std::vector<Digest> ChunkStore::digests() const {
  const std::lock_guard lock(mutex_);
  std::vector<Digest> all;
  all.reserve(chunks_.size());
  for (const auto& [digest, chunk] : chunks_) all.push_back(digest);
  return all;
}

bool ChunkStore::drop(const Digest& digest) {
  const std::lock_guard lock(mutex_);
  if (chunks_.erase(digest) == 0) return false;
  if (!directory_.empty()) unlink(path(digest, kSuffix).c_str());
  return true;
}

std::size_t ChunkStore::drop_others(const std::set<Digest>& kept) {
  const std::lock_guard lock(mutex_);
  return std::erase_if(chunks_, [&](const auto& entry) {
    if (kept.contains(entry.first)) return false;
    if (!directory_.empty()) unlink(path(entry.first, kSuffix).c_str());
    return true;
  });
}

void ChunkStore::forget_assignment() {
  if (!directory_.empty()) unlink((directory_ + kAssignmentFile).c_str());
}

void ChunkStore::drop_all() {
  const std::lock_guard lock(mutex_);
  if (!directory_.empty()) {
    for (const auto& [digest, chunk] : chunks_) unlink(path(digest, kSuffix).c_str());
    unlink((directory_ + kAssignmentFile).c_str());
  }
  chunks_.clear();
}

ChunkStore::Totals ChunkStore::totals() const {
  const std::lock_guard lock(mutex_);
  Totals sum;
  for (const auto& [digest, chunk] : chunks_) {
    ++sum.num_chunks;
    sum.num_mends += chunk->num_mends;
    sum.packed_bytes += chunk->packed.packed_bytes();
  }
  return sum;
}

void ChunkStore::keep_assignment(std::span<const std::byte> assignment) {
  if (directory_.empty()) return;
  const std::string final_path = directory_ + kAssignmentFile;
  const std::string partial = final_path + kPartial;
  std::string error;
  auto file = PageBuffer::create_file(partial, assignment.size(), error);
  if (!file) {
    log_warn("assignment_not_kept").with("reason", error);
    return;
  }
  std::ranges::copy(assignment, file->bytes().begin());
  if (msync(file->bytes().data(), file->size(), MS_SYNC) != 0 || std::rename(partial.c_str(), final_path.c_str()) != 0) {
    log_warn("assignment_not_kept").with("reason", std::strerror(errno));
  }
}

std::optional<PageBuffer> ChunkStore::kept_assignment() const {
  if (directory_.empty()) return std::nullopt;
  std::string error;
  return PageBuffer::map_file(directory_ + kAssignmentFile, error);
}

}  // namespace duckfleet::duckd
