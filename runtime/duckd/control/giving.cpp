#include "giving.hpp"

#include <algorithm>
#include <utility>

#include "checksum.hpp"
#include "log.hpp"

namespace duckfleet::duckd {
namespace {

using wire::ControlType;
using wire::ErrorCode;
using wire::Refusal;

// Small enough to stay in a cache between unpacking, sealing and sending.
constexpr std::size_t kPieceBytes = 256 << 10;

std::optional<Refusal> send_chunk(ControlConnection& io, DuckContext& duck, std::uint32_t request_id,
                                  const Digest& digest) {
  const auto chunk = duck.store.find(digest);
  if (!chunk || chunk->damaged) return Refusal{ErrorCode::kChunkMissing, "chunk " + to_hex(digest) + " is not held here"};
  const std::uint32_t num_mends = chunk->num_mends;
  const auto packed = chunk->memory.bytes().first(chunk->packed.packed_bytes());
  if (Checksum::of(packed) != chunk->checksum) {  // cheaper to find here than at the other end
    if (duck.store.report_damage(digest, num_mends)) {
      duck.counters.scrub.found.add();
      log_error("chunk_damaged").with("digest", to_hex(digest)).with("layer", chunk->packed.layer());
    }
    return Refusal{ErrorCode::kChunkMissing, "chunk " + to_hex(digest) + " is damaged here"};
  }
  const StagedBytes staged(duck, chunk->packed.logical_bytes());
  if (staged.refusal()) return staged.refusal();
  auto logical = PageBuffer::anonymous(chunk->packed.logical_bytes());
  if (!logical) return Refusal{ErrorCode::kNoMemory, "no address space to unpack the chunk"};
  chunk->packed.unpack(logical->bytes());

  wire::ChunkBegin begin{};
  std::ranges::copy(digest, begin.digest);
  begin.total_bytes = logical->size();
  bool sent = io.send(ControlType::kChunkBegin, request_id, wire::bytes_of(begin));
  const std::span<const std::byte> bytes = std::as_const(*logical).bytes();
  for (std::size_t at = 0; sent && at < bytes.size(); at += kPieceBytes) {
    auto payload = wire::bytes_of(wire::ChunkData{at});
    const auto piece = bytes.subspan(at, std::min(kPieceBytes, bytes.size() - at));
    payload.insert(payload.end(), piece.begin(), piece.end());
    sent = io.send(ControlType::kChunkData, request_id, payload);
  }
  if (sent && io.send(ControlType::kChunkEnd, request_id, {})) {
    duck.counters.control.chunks_given.add();
  } else {
    log_warn("chunk_not_given").with("digest", to_hex(digest)).with("reason", "the other duck went away");
  }
  return std::nullopt;
}

}  // namespace

void give_chunk(ControlConnection& io, DuckContext& duck, const wire::ControlFrame& request) {
  duck.counters.control.requests.add();
  std::optional<Refusal> refusal;
  if (request.type() != ControlType::kChunkGet || !request.payload.empty()) {
    refusal = Refusal{ErrorCode::kMalformed, "a connection with a ticket asks for its chunk and for nothing else"};
  } else if (const auto digest = duck.offers.take(*io.ticket())) {
    refusal = send_chunk(io, duck, request.header.request_id, *digest);
  } else {
    refusal = Refusal{ErrorCode::kAuthRequired, "the ticket has been used"};
  }
  if (!refusal) return;
  duck.counters.control.refusals.add();
  log_warn("refused").with("code", wire::name(refusal->code)).with("reason", refusal->text);
  io.send(ControlType::kError, request.header.request_id, wire::error_payload(*refusal));
}

}  // namespace duckfleet::duckd
