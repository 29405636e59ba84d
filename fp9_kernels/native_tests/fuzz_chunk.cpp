// Fuzz target: any bytes as a logical chunk (parsed, packed, opened, multiplied once) and as a packed one.
#include <cstdlib>
#include <cstring>

#include "chunk.hpp"
#include "dispatch.hpp"
#include "ffn.hpp"
#include "memory.hpp"

using namespace duckfleet::kernels;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes{reinterpret_cast<const std::byte*>(data), size};
  {
    WeightMemory copy(size);
    if (size != 0) std::memcpy(copy.data(), data, size);
    PackedChunk::open(copy.bytes());
  }
  ChunkInfo info;
  if (parse_chunk(bytes, info) || info.packed_bytes > (1u << 22)) return 0;
  WeightMemory memory(info.packed_bytes);
  if (pack_chunk(bytes, memory.bytes())) return 0;
  const std::optional<PackedChunk> chunk = PackedChunk::open(memory.bytes());
  if (!chunk || chunk->logical_bytes() != size) std::abort();
  std::vector<std::byte> unpacked(size);
  chunk->unpack(unpacked);
  if (std::memcmp(unpacked.data(), data, size) != 0) std::abort();
  std::vector<float> x(info.hidden, 0.5f), y(info.hidden);
  Team team(1);
  Workspace workspace;
  ffn_part(*select("").kernels, team, {&*chunk, 1}, {1, info.hidden, 0, x.data(), nullptr}, y.data(), workspace);
  return 0;
}
