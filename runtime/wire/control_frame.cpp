#include "control_frame.hpp"

namespace duckfleet::wire {

std::string_view name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kMalformed: return "malformed";
    case ErrorCode::kProtocolVersion: return "protocol_version";
    case ErrorCode::kAuthRequired: return "auth_required";
    case ErrorCode::kAuthNotConfigured: return "auth_not_configured";
    case ErrorCode::kTooManyConnections: return "too_many_connections";
    case ErrorCode::kUnknownType: return "unknown_type";
    case ErrorCode::kTooLarge: return "too_large";
    case ErrorCode::kInternal: return "internal";
    case ErrorCode::kModelDigest: return "model_digest";
    case ErrorCode::kShardDigest: return "shard_digest";
    case ErrorCode::kRank: return "rank";
    case ErrorCode::kTp: return "tp";
    case ErrorCode::kFormat: return "format";
    case ErrorCode::kNumLayers: return "num_layers";
    case ErrorCode::kHidden: return "hidden";
    case ErrorCode::kWireDtype: return "wire_dtype";
    case ErrorCode::kTagAlgorithm: return "tag_algorithm";
    case ErrorCode::kStaleGeneration: return "stale_generation";
    case ErrorCode::kNotAssigned: return "not_assigned";
    case ErrorCode::kChunkMissing: return "chunk_missing";
    case ErrorCode::kChunkUnfit: return "chunk_unfit";
    case ErrorCode::kChunkDigest: return "chunk_digest";
    case ErrorCode::kChunkInvalid: return "chunk_invalid";
    case ErrorCode::kChunkSize: return "chunk_size";
    case ErrorCode::kNoMemory: return "no_memory";
    case ErrorCode::kChunkInUse: return "chunk_in_use";
    case ErrorCode::kChunkOrder: return "chunk_order";
    case ErrorCode::kPeerFailed: return "peer_failed";
  }
  return "unknown";
}

std::optional<Refusal> check_control_header(const ControlHeader& header) {
  if (header.magic != kControlMagic) return Refusal{ErrorCode::kMalformed, "this is not a control frame of duckfleet"};
  if (header.version != kVersion) {
    return Refusal{ErrorCode::kProtocolVersion,
                   "the frame has protocol version " + std::to_string(header.version) + ", this duckd speaks " +
                       std::to_string(kVersion) + ": install the same duckfleet on both sides"};
  }
  if (header.length > kMaxControlPayload) {
    return Refusal{ErrorCode::kTooLarge, "a payload of " + std::to_string(header.length) + " bytes, at most " +
                                             std::to_string(kMaxControlPayload) + " are taken"};
  }
  return std::nullopt;
}

std::optional<Refusal> parse_control_frame(std::span<const std::byte> bytes, ControlFrame& frame) {
  if (!take(bytes, frame.header)) return Refusal{ErrorCode::kMalformed, "too short for a control header"};
  if (auto refusal = check_control_header(frame.header)) return refusal;
  if (frame.header.length != bytes.size()) {
    return Refusal{ErrorCode::kMalformed, "the payload is " + std::to_string(bytes.size()) +
                                              " bytes long, its header says " + std::to_string(frame.header.length)};
  }
  frame.payload = bytes;
  return std::nullopt;
}

namespace {

template <typename T>
std::vector<std::byte> joined(const T& head, std::span<const std::byte> tail) {
  std::vector<std::byte> out(sizeof head + tail.size());
  std::memcpy(out.data(), &head, sizeof head);
  if (!tail.empty()) std::memcpy(out.data() + sizeof head, tail.data(), tail.size());
  return out;
}

}  // namespace

std::vector<std::byte> make_control_frame(ControlType type, std::uint32_t request_id,
                                          std::span<const std::byte> payload) {
  const ControlHeader header{kControlMagic, kVersion, static_cast<std::uint16_t>(type), request_id,
                             static_cast<std::uint32_t>(payload.size())};
  return joined(header, payload);
}

std::vector<std::byte> error_payload(const Refusal& refusal) {
  return joined(ErrorReply{static_cast<std::uint16_t>(refusal.code), 0}, std::as_bytes(std::span(refusal.text)));
}

}  // namespace duckfleet::wire
