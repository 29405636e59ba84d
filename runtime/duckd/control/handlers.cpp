#include "handlers.hpp"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "auth.hpp"
#include "log.hpp"

namespace duckfleet::duckd {
namespace {

using wire::ControlType;
using wire::ErrorCode;
using wire::Refusal;

// By all connections together, at most.
constexpr std::uint64_t kMaxStagedBytes = 4ull * wire::kMaxChunkBytes;
constexpr std::uint8_t kAllWireDtypes = 0b111;
constexpr std::size_t kMaxTold = 512;  // of another duck's words, passed on to the host

Answer ok(std::vector<std::byte> payload = {}) { return {ControlType::kOk, std::move(payload)}; }

Answer json(ControlType type, const std::string& text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {type, {data, data + text.size()}};
}

template <std::size_t N>
void copy_text(char (&field)[N], const std::string& text) {
  std::memset(field, 0, N);
  std::memcpy(field, text.data(), std::min(N, text.size()));
}

Refusal wrong_length(const char* what) { return {ErrorCode::kMalformed, std::string(what) + ": the wrong length"}; }

std::string to_text(const wire::ChunkFetch& request) {
  std::string text;
  for (const std::uint8_t part : request.address) text += (text.empty() ? "" : ".") + std::to_string(part);
  return text + ":" + std::to_string(request.port);
}

}  // namespace

StagedBytes::StagedBytes(DuckContext& duck, std::uint64_t num_bytes) : duck_(duck), num_bytes_(num_bytes) {
  // The raw bytes and then, of a chunk that comes, the packed ones must have room.
  const std::uint64_t available = memory_available_bytes();
  if (available != 0 && available < 2 * num_bytes) {
    refusal_ = Refusal{ErrorCode::kNoMemory, "the chunk needs " + std::to_string(2 * num_bytes) + " bytes and " +
                                                 std::to_string(available) + " are available"};
  }
  if (duck_.staged_bytes.fetch_add(num_bytes_) + num_bytes_ > kMaxStagedBytes && !refusal_) {
    refusal_ = Refusal{ErrorCode::kNoMemory, "too many chunks are on their way at once; try again"};
  }
}

StagedBytes::~StagedBytes() { duck_.staged_bytes.fetch_sub(num_bytes_); }

Answer ControlHandlers::refuse(Refusal refusal) {
  duck_.counters.control.refusals.add();
  log_warn("refused").with("code", wire::name(refusal.code)).with("reason", refusal.text);
  return {ControlType::kError, wire::error_payload(refusal)};
}

std::optional<Answer> ControlHandlers::handle(const wire::ControlFrame& frame) {
  duck_.counters.control.requests.add();
  const auto payload = frame.payload;
  switch (frame.type()) {
    case ControlType::kIdentity:
      return identity(payload);
    case ControlType::kAssign: {
      auto refusal = duck_.placement.assign(payload);
      return refusal ? refuse(std::move(*refusal)) : ok();
    }
    case ControlType::kConfigure: {
      auto refusal = duck_.placement.configure(payload);
      return refusal ? refuse(std::move(*refusal)) : ok();
    }
    case ControlType::kHave:
      return have(payload);
    case ControlType::kChunkBegin:
      return chunk_begin(payload);
    case ControlType::kChunkData:
      chunk_data(payload);
      return std::nullopt;
    case ControlType::kChunkEnd:
      return chunk_end(payload);
    case ControlType::kChunkOffer:
      return chunk_offer(payload);
    case ControlType::kChunkFetch:
      return chunk_fetch(payload);
    case ControlType::kChunkDrop:
      return chunk_drop(payload);
    case ControlType::kChunkKeep:
      return chunk_keep(payload);
    case ControlType::kStats:
      if (!payload.empty()) return refuse(wrong_length("stats"));
      return json(ControlType::kStatsReply, duck_.stats_json());
    case ControlType::kProbe:
      return probe(payload);
    case ControlType::kShutdown:
      return shutdown(payload);
    default:
      duck_.counters.control.unknown_type.add();
      return refuse({ErrorCode::kUnknownType, "frames of type " + std::to_string(frame.header.type) + " are not taken here"});
  }
}

Answer ControlHandlers::identity(std::span<const std::byte> payload) {
  if (!payload.empty()) return refuse(wrong_length("identity"));
  const Placement::State state = duck_.placement.state();
  const ChunkStore::Totals held = duck_.store.totals();
  wire::IdentityReply reply{};
  reply.protocol_version = wire::kVersion;
  if (state.shard) {
    const wire::Assign& assign = state.shard->assignment();
    reply.rank = assign.rank;
    reply.tp = assign.tp;
    reply.format = assign.format;
    reply.num_layers = assign.num_layers;
    reply.hidden = assign.hidden;
    reply.num_assigned = static_cast<std::uint32_t>(state.shard->num_chunks());
    reply.flags = wire::kIdentityAssigned;
    std::memcpy(reply.model_digest, assign.model_digest, sizeof reply.model_digest);
    std::memcpy(reply.shard_digest, state.shard->digest().data(), sizeof reply.shard_digest);
  }
  if (state.session != 0) reply.flags |= wire::kIdentityConfigured;
  reply.generation = state.generation;
  reply.plan_generation = state.plan_generation;
  reply.num_chunks = held.num_chunks;
  reply.held_bytes = held.packed_bytes;
  reply.session = state.session;
  reply.instance = duck_.instance;
  reply.mem_total_bytes = memory_total_bytes();
  reply.mem_available_bytes = memory_available_bytes();
  reply.num_threads = duck_.num_threads;
  reply.num_cpus = duck_.num_cpus;
  reply.data_port = duck_.data_port;
  reply.tag_algorithms = wire::available_tag_algorithms();
  reply.wire_dtypes = kAllWireDtypes;
  copy_text(reply.kernels, duck_.kernels);
  copy_text(reply.duckd_version, duck_.version);
  copy_text(reply.hostname, duck_.hostname);
  return {ControlType::kIdentityReply, wire::bytes_of(reply)};
}

Answer ControlHandlers::have(std::span<const std::byte> payload) {
  if (payload.size() % sizeof(Digest) != 0) return refuse(wrong_length("have"));
  const std::size_t count = payload.size() / sizeof(Digest);
  if (count > wire::kMaxHave) {
    return refuse({ErrorCode::kTooLarge, "have: " + std::to_string(count) + " digests, at most " +
                                             std::to_string(wire::kMaxHave)});
  }
  std::vector<std::byte> held(count);
  for (std::byte& one : held) {
    Digest digest;
    wire::take(payload, digest);
    one = std::byte{duck_.store.has(digest)};
  }
  return {ControlType::kHaveReply, std::move(held)};
}

Answer ControlHandlers::chunk_begin(std::span<const std::byte> payload) {
  wire::ChunkBegin begin;
  if (!wire::take_only(payload, begin)) return refuse(wrong_length("chunk begin"));
  if (upload_) {
    upload_.reset();
    return refuse({ErrorCode::kChunkOrder, "a chunk was begun before the one under way had ended; both are dropped"});
  }
  const Digest digest = make_digest(begin.digest);
  if (duck_.store.has(digest)) return ok({std::byte{1}});
  auto refusal = begin_upload(digest, begin.total_bytes);
  return refusal ? refuse(std::move(*refusal)) : ok();
}

std::optional<Refusal> ControlHandlers::begin_upload(const Digest& digest, std::uint64_t num_bytes) {
  if (num_bytes == 0 || num_bytes > wire::kMaxChunkBytes) {
    return Refusal{ErrorCode::kChunkSize, "a chunk of " + std::to_string(num_bytes) + " bytes; 1 to " +
                                              std::to_string(wire::kMaxChunkBytes) + " are taken"};
  }
  auto upload = std::make_unique<Upload>(duck_, digest, num_bytes);
  if (upload->staged.refusal()) return upload->staged.refusal();
  auto memory = PageBuffer::anonymous(num_bytes);
  if (!memory) return Refusal{ErrorCode::kNoMemory, "no address space for the chunk"};
  upload->memory = std::move(*memory);
  upload_ = std::move(upload);
  return std::nullopt;
}

void ControlHandlers::chunk_data(std::span<const std::byte> payload) {
  wire::ChunkData data;
  if (!upload_ || upload_->failure) return;  // told at the end
  if (!wire::take(payload, data)) {
    upload_->failure = wrong_length("chunk data");
  } else if (data.offset != upload_->received || payload.size() > upload_->memory.size() - upload_->received) {
    upload_->failure = Refusal{ErrorCode::kChunkOrder, "chunk data at " + std::to_string(data.offset) + " of " +
                                                           std::to_string(payload.size()) + " bytes; expected at " +
                                                           std::to_string(upload_->received)};
  } else {
    upload_->hasher.update(payload);
    std::ranges::copy(payload, upload_->memory.bytes().begin() + static_cast<std::ptrdiff_t>(upload_->received));
    upload_->received += payload.size();
    duck_.counters.control.chunk_bytes_received.add(payload.size());
  }
}

Answer ControlHandlers::chunk_end(std::span<const std::byte> payload) {
  if (!payload.empty()) return refuse(wrong_length("chunk end"));
  if (!upload_) return refuse({ErrorCode::kChunkOrder, "the end of a chunk that was not begun"});
  auto refusal = finish_upload();
  return refusal ? refuse(std::move(*refusal)) : ok();
}

std::optional<Refusal> ControlHandlers::finish_upload() {
  const auto upload = std::move(upload_);
  std::optional<Refusal> failure = std::move(upload->failure);
  if (!failure && upload->received != upload->memory.size()) {
    failure = Refusal{ErrorCode::kChunkOrder, std::to_string(upload->received) + " of " +
                                                  std::to_string(upload->memory.size()) + " bytes came before the end"};
  }
  if (!failure) {
    const Digest came = upload->hasher.finish();
    if (came != upload->digest) {
      failure = Refusal{ErrorCode::kChunkDigest,
                        "the bytes have the digest " + to_hex(came) + ", not " + to_hex(upload->digest)};
    }
  }
  if (!failure) failure = duck_.store.put(upload->digest, upload->memory.bytes());
  if (failure) {
    duck_.counters.control.chunks_refused.add();
    return failure;
  }
  duck_.counters.control.chunks_stored.add();
  log_debug("chunk_stored").with("digest", to_hex(upload->digest)).with("bytes", upload->memory.size());
  return std::nullopt;
}

Answer ControlHandlers::chunk_offer(std::span<const std::byte> payload) {
  auto refusal = duck_.offers.add(payload);
  return refusal ? refuse(std::move(*refusal)) : ok();
}

Answer ControlHandlers::chunk_fetch(std::span<const std::byte> payload) {
  wire::ChunkFetch request;
  if (!wire::take_only(payload, request)) return refuse(wrong_length("chunk fetch"));
  const auto is_sane = [](std::uint32_t ms) { return ms != 0 && ms <= wire::kMaxFetchMs; };
  if (!is_sane(request.silence_ms) || !is_sane(request.limit_ms)) {
    return refuse({ErrorCode::kMalformed, "a fetch with time-outs of " + std::to_string(request.silence_ms) + " and " +
                                              std::to_string(request.limit_ms) + " ms"});
  }
  if (upload_) {
    upload_.reset();
    return refuse({ErrorCode::kChunkOrder, "a chunk was to be fetched before the one under way had ended"});
  }
  if (duck_.store.has(make_digest(request.digest))) return ok({std::byte{1}});
  auto refusal = fetch(request);
  upload_.reset();
  if (refusal) return refuse(std::move(*refusal));
  duck_.counters.control.chunks_fetched.add();
  return ok();
}

// What the other duck answers is taken as if a host sent it; it is trusted no further than its bytes have the digest.
std::optional<Refusal> ControlHandlers::fetch(const wire::ChunkFetch& request) {
  const Digest digest = make_digest(request.digest);
  std::optional<Refusal> failure;
  bool kept = false;
  const auto take = [&](const wire::ControlFrame& frame) {
    wire::ChunkBegin begin;
    std::span<const std::byte> payload = frame.payload;
    if (frame.type() == ControlType::kChunkBegin && !upload_ && wire::take_only(payload, begin)) {
      failure = make_digest(begin.digest) == digest ? begin_upload(digest, begin.total_bytes)
                                                    : Refusal{ErrorCode::kChunkDigest, "it sends another chunk"};
    } else if (frame.type() == ControlType::kChunkData && upload_) {
      chunk_data(payload);
      failure = upload_->failure;
    } else if (frame.type() == ControlType::kChunkEnd && upload_ && payload.empty()) {
      failure = finish_upload();
      kept = !failure;
    } else if (wire::ErrorReply said; frame.type() == ControlType::kError && wire::take(payload, said)) {
      const auto text = payload.first(std::min(payload.size(), kMaxTold));
      failure = Refusal{ErrorCode::kPeerFailed, "it says: " + std::string(reinterpret_cast<const char*>(text.data()), text.size())};
    } else {
      failure = Refusal{ErrorCode::kChunkOrder, "it sends frames of type " + std::to_string(frame.header.type) +
                                                    " where they make no sense"};
    }
    return !failure && !kept;
  };
  const std::string ended = duck_.fetch(request, take);
  if (kept || (failure && failure->code == ErrorCode::kNoMemory)) return failure;
  return Refusal{ErrorCode::kPeerFailed, "chunk " + to_hex(digest) + " was not had from " + to_text(request) + ": " +
                                             (failure ? failure->text : ended)};
}

Answer ControlHandlers::chunk_drop(std::span<const std::byte> payload) {
  wire::ChunkDrop drop;
  if (!wire::take_only(payload, drop)) return refuse(wrong_length("chunk drop"));
  const Digest digest = make_digest(drop.digest);
  if (duck_.placement.uses(digest)) {
    return refuse({ErrorCode::kChunkInUse, "chunk " + to_hex(digest) + " belongs to the assignment"});
  }
  duck_.store.drop(digest);
  return ok();
}

Answer ControlHandlers::chunk_keep(std::span<const std::byte> payload) {
  if (payload.size() % sizeof(Digest) != 0) return refuse(wrong_length("chunk keep"));
  const std::size_t count = payload.size() / sizeof(Digest);
  if (count > wire::kMaxAssign) {
    return refuse({ErrorCode::kTooLarge, "chunk keep: " + std::to_string(count) + " digests, at most " +
                                             std::to_string(wire::kMaxAssign)});
  }
  std::set<Digest> kept;
  for (std::size_t i = 0; i < count; ++i) {
    Digest digest;
    wire::take(payload, digest);
    kept.insert(digest);
  }
  duck_.placement.release_unless_within(kept);
  const std::size_t num_dropped = duck_.store.drop_others(kept);
  log_info("chunks_dropped").with("dropped", num_dropped).with("kept", duck_.store.totals().num_chunks);
  return ok();
}

Answer ControlHandlers::probe(std::span<const std::byte> payload) {
  wire::ProbeRequest request;
  if (!wire::take_only(payload, request)) return refuse(wrong_length("probe"));
  if (request.seconds > wire::kMaxProbeSeconds) {
    return refuse({ErrorCode::kMalformed, "a probe of " + std::to_string(request.seconds) + " s is too long"});
  }
  const auto asked = [&](std::uint32_t flag) { return (request.flags & flag) != 0; };
  return json(ControlType::kProbeReply,
              duck_.probe_json({.speed = asked(wire::kProbeMeasure),
                                .memory_s = asked(wire::kProbeMemory) ? request.seconds : 0,
                                .sustained_s = asked(wire::kProbeSustained) ? request.seconds : 0}));
}

Answer ControlHandlers::shutdown(std::span<const std::byte> payload) {
  wire::ShutdownRequest request;
  if (!wire::take_only(payload, request)) return refuse(wrong_length("shutdown"));
  const bool drop_store = (request.flags & wire::kShutdownDropStore) != 0;
  log_info("shutdown_requested").with("drop_store", drop_store ? "true" : "false");
  if (drop_store) {
    duck_.placement.clear();
    duck_.store.drop_all();
  }
  duck_.shut_down();
  return ok();
}

}  // namespace duckfleet::duckd
