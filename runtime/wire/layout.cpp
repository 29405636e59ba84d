#include "layout.hpp"

#include "wire.hpp"

namespace duckfleet::wire {
namespace {

// A struct's own name of itself cannot be asked for in C++20, so the fields are named once more; the sizes must add up.
#define DUCKFLEET_FIELD(type, field) {#field, offsetof(type, field), sizeof(type::field)}

constexpr FieldLayout kDataHeader[] = {
    DUCKFLEET_FIELD(DataHeader, magic),
    DUCKFLEET_FIELD(DataHeader, version),
    DUCKFLEET_FIELD(DataHeader, kind),
    DUCKFLEET_FIELD(DataHeader, lane),
    DUCKFLEET_FIELD(DataHeader, session),
    DUCKFLEET_FIELD(DataHeader, generation),
    DUCKFLEET_FIELD(DataHeader, step),
    DUCKFLEET_FIELD(DataHeader, layer),
    DUCKFLEET_FIELD(DataHeader, wire_dtype),
    DUCKFLEET_FIELD(DataHeader, part),
    DUCKFLEET_FIELD(DataHeader, slice),
    DUCKFLEET_FIELD(DataHeader, rank),
    DUCKFLEET_FIELD(DataHeader, num_tokens),
    DUCKFLEET_FIELD(DataHeader, top_k),
    DUCKFLEET_FIELD(DataHeader, hidden),
    DUCKFLEET_FIELD(DataHeader, message_bytes),
    DUCKFLEET_FIELD(DataHeader, offset),
    DUCKFLEET_FIELD(DataHeader, fragment_bytes),
    DUCKFLEET_FIELD(DataHeader, key_id),
    DUCKFLEET_FIELD(DataHeader, sequence),
    DUCKFLEET_FIELD(DataHeader, tag),
};
constexpr FieldLayout kRoute[] = {
    DUCKFLEET_FIELD(Route, expert),
    DUCKFLEET_FIELD(Route, weight),
};
constexpr FieldLayout kRange[] = {
    DUCKFLEET_FIELD(Range, offset),
    DUCKFLEET_FIELD(Range, bytes),
};
constexpr FieldLayout kControlHeader[] = {
    DUCKFLEET_FIELD(ControlHeader, magic),
    DUCKFLEET_FIELD(ControlHeader, version),
    DUCKFLEET_FIELD(ControlHeader, type),
    DUCKFLEET_FIELD(ControlHeader, request_id),
    DUCKFLEET_FIELD(ControlHeader, length),
};
constexpr FieldLayout kHello[] = {
    DUCKFLEET_FIELD(Hello, mode),
    DUCKFLEET_FIELD(Hello, zero),
    DUCKFLEET_FIELD(Hello, ephemeral),
};
constexpr FieldLayout kHelloReply[] = {
    DUCKFLEET_FIELD(HelloReply, mode),
    DUCKFLEET_FIELD(HelloReply, zero),
    DUCKFLEET_FIELD(HelloReply, ephemeral),
    DUCKFLEET_FIELD(HelloReply, confirm),
    DUCKFLEET_FIELD(HelloReply, stream_header),
};
constexpr FieldLayout kPeerHello[] = {
    DUCKFLEET_FIELD(PeerHello, ticket),
    DUCKFLEET_FIELD(PeerHello, ephemeral),
};
constexpr FieldLayout kErrorReply[] = {
    DUCKFLEET_FIELD(ErrorReply, code),
    DUCKFLEET_FIELD(ErrorReply, zero),
};
constexpr FieldLayout kIdentityReply[] = {
    DUCKFLEET_FIELD(IdentityReply, protocol_version),
    DUCKFLEET_FIELD(IdentityReply, rank),
    DUCKFLEET_FIELD(IdentityReply, tp),
    DUCKFLEET_FIELD(IdentityReply, format),
    DUCKFLEET_FIELD(IdentityReply, flags),
    DUCKFLEET_FIELD(IdentityReply, generation),
    DUCKFLEET_FIELD(IdentityReply, plan_generation),
    DUCKFLEET_FIELD(IdentityReply, num_layers),
    DUCKFLEET_FIELD(IdentityReply, hidden),
    DUCKFLEET_FIELD(IdentityReply, num_chunks),
    DUCKFLEET_FIELD(IdentityReply, num_assigned),
    DUCKFLEET_FIELD(IdentityReply, held_bytes),
    DUCKFLEET_FIELD(IdentityReply, session),
    DUCKFLEET_FIELD(IdentityReply, instance),
    DUCKFLEET_FIELD(IdentityReply, mem_total_bytes),
    DUCKFLEET_FIELD(IdentityReply, mem_available_bytes),
    DUCKFLEET_FIELD(IdentityReply, num_threads),
    DUCKFLEET_FIELD(IdentityReply, num_cpus),
    DUCKFLEET_FIELD(IdentityReply, data_port),
    DUCKFLEET_FIELD(IdentityReply, tag_algorithms),
    DUCKFLEET_FIELD(IdentityReply, wire_dtypes),
    DUCKFLEET_FIELD(IdentityReply, model_digest),
    DUCKFLEET_FIELD(IdentityReply, shard_digest),
    DUCKFLEET_FIELD(IdentityReply, kernels),
    DUCKFLEET_FIELD(IdentityReply, duckd_version),
    DUCKFLEET_FIELD(IdentityReply, hostname),
};
constexpr FieldLayout kAssign[] = {
    DUCKFLEET_FIELD(Assign, generation),
    DUCKFLEET_FIELD(Assign, num_layers),
    DUCKFLEET_FIELD(Assign, hidden),
    DUCKFLEET_FIELD(Assign, rank),
    DUCKFLEET_FIELD(Assign, tp),
    DUCKFLEET_FIELD(Assign, format),
    DUCKFLEET_FIELD(Assign, zero),
    DUCKFLEET_FIELD(Assign, num_chunks),
    DUCKFLEET_FIELD(Assign, model_digest),
};
constexpr FieldLayout kConfigure[] = {
    DUCKFLEET_FIELD(Configure, session),
    DUCKFLEET_FIELD(Configure, generation),
    DUCKFLEET_FIELD(Configure, num_layers),
    DUCKFLEET_FIELD(Configure, hidden),
    DUCKFLEET_FIELD(Configure, rank),
    DUCKFLEET_FIELD(Configure, tp),
    DUCKFLEET_FIELD(Configure, format),
    DUCKFLEET_FIELD(Configure, wire_dtype),
    DUCKFLEET_FIELD(Configure, tag_algorithm),
    DUCKFLEET_FIELD(Configure, zero),
    DUCKFLEET_FIELD(Configure, host_address),
    DUCKFLEET_FIELD(Configure, host_port),
    DUCKFLEET_FIELD(Configure, reply_fragment_bytes),
    DUCKFLEET_FIELD(Configure, domain_key_id),
    DUCKFLEET_FIELD(Configure, duck_key_id),
    DUCKFLEET_FIELD(Configure, pace_bytes_per_s),
    DUCKFLEET_FIELD(Configure, domain_key),
    DUCKFLEET_FIELD(Configure, duck_key),
    DUCKFLEET_FIELD(Configure, model_digest),
    DUCKFLEET_FIELD(Configure, shard_digest),
};
constexpr FieldLayout kChunkBegin[] = {
    DUCKFLEET_FIELD(ChunkBegin, digest),
    DUCKFLEET_FIELD(ChunkBegin, total_bytes),
};
constexpr FieldLayout kChunkData[] = {
    DUCKFLEET_FIELD(ChunkData, offset),
};
constexpr FieldLayout kChunkDrop[] = {
    DUCKFLEET_FIELD(ChunkDrop, digest),
};
constexpr FieldLayout kChunkOffer[] = {
    DUCKFLEET_FIELD(ChunkOffer, ticket),
    DUCKFLEET_FIELD(ChunkOffer, secret),
    DUCKFLEET_FIELD(ChunkOffer, digest),
    DUCKFLEET_FIELD(ChunkOffer, lifetime_s),
};
constexpr FieldLayout kChunkFetch[] = {
    DUCKFLEET_FIELD(ChunkFetch, ticket),
    DUCKFLEET_FIELD(ChunkFetch, secret),
    DUCKFLEET_FIELD(ChunkFetch, digest),
    DUCKFLEET_FIELD(ChunkFetch, address),
    DUCKFLEET_FIELD(ChunkFetch, port),
    DUCKFLEET_FIELD(ChunkFetch, silence_ms),
    DUCKFLEET_FIELD(ChunkFetch, limit_ms),
};
constexpr FieldLayout kProbeRequest[] = {
    DUCKFLEET_FIELD(ProbeRequest, flags),
    DUCKFLEET_FIELD(ProbeRequest, seconds),
};
constexpr FieldLayout kShutdownRequest[] = {
    DUCKFLEET_FIELD(ShutdownRequest, flags),
};

#undef DUCKFLEET_FIELD

constexpr StructLayout kLayouts[] = {
    {"DataHeader", sizeof(DataHeader), kDataHeader},
    {"Route", sizeof(Route), kRoute},
    {"Range", sizeof(Range), kRange},
    {"ControlHeader", sizeof(ControlHeader), kControlHeader},
    {"Hello", sizeof(Hello), kHello},
    {"HelloReply", sizeof(HelloReply), kHelloReply},
    {"PeerHello", sizeof(PeerHello), kPeerHello},
    {"ErrorReply", sizeof(ErrorReply), kErrorReply},
    {"IdentityReply", sizeof(IdentityReply), kIdentityReply},
    {"Assign", sizeof(Assign), kAssign},
    {"Configure", sizeof(Configure), kConfigure},
    {"ChunkBegin", sizeof(ChunkBegin), kChunkBegin},
    {"ChunkData", sizeof(ChunkData), kChunkData},
    {"ChunkDrop", sizeof(ChunkDrop), kChunkDrop},
    {"ChunkOffer", sizeof(ChunkOffer), kChunkOffer},
    {"ChunkFetch", sizeof(ChunkFetch), kChunkFetch},
    {"ProbeRequest", sizeof(ProbeRequest), kProbeRequest},
    {"ShutdownRequest", sizeof(ShutdownRequest), kShutdownRequest},
};

constexpr bool covers_every_byte(const StructLayout& layout) {
  std::size_t end = 0;
  for (const FieldLayout& field : layout.fields) {
    if (field.offset != end) return false;
    end += field.size;
  }
  return end == layout.size;
}

constexpr bool all_cover() {
  for (const StructLayout& layout : kLayouts) {
    if (!covers_every_byte(layout)) return false;
  }
  return true;
}
static_assert(all_cover(), "a field of wire.hpp is missing here");

}  // namespace

std::span<const StructLayout> layouts() noexcept { return kLayouts; }

std::string layout_text() {
  std::string text;
  for (const StructLayout& layout : kLayouts) {
    text += "struct " + std::string(layout.name) + " " + std::to_string(layout.size) + "\n";
    for (const FieldLayout& field : layout.fields) {
      text += "  " + std::string(field.name) + " " + std::to_string(field.offset) + " " + std::to_string(field.size) + "\n";
    }
  }
  return text;
}

}  // namespace duckfleet::wire
