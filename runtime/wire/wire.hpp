// The wire layout between host and duck, and the only source of it.
//
// Every field is little-endian and of fixed width, every struct is packed and its size asserted. Magic and
// version come first in whatever arrives; a length is compared with its bound before memory is taken for it.
// `duckd --layout` prints these structs (name, offset, size); a test holds Python's dataclasses against them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace duckfleet::wire {

inline constexpr std::uint32_t kDataMagic = 0x54444644;     // "DFDT"
inline constexpr std::uint32_t kControlMagic = 0x54434644;  // "DFCT"
inline constexpr std::uint16_t kVersion = 1;

// ---------------------------------------------------------------------------------------------------------
// Data plane (UDP). One datagram = DataHeader + fragment_bytes of payload.
//
// A *message* is identified by (session, generation, step, lane, layer, kind, slice, part) and is cut into
// fragments; each fragment carries the whole header, so fragments may come in any order. The tag covers the
// header with `tag` zeroed, and the payload.
//
//   request  host -> ducks   payload: routes, then activations (see below)
//   reply    duck -> host    payload: one vector [num_tokens, hidden] f32, of (slice, part)
//   nack_request duck -> host  "of this request I lack these ranges"       payload: Range[]
//   nack_reply   host -> duck  "of this reply I lack these ranges"         payload: Range[] (none: all of it)
//   busy     duck -> host    "your request is whole here, I am computing"  no payload
//   echo / echo_reply        burst test of the link; payload of any bytes, returned
// ---------------------------------------------------------------------------------------------------------
enum class DataKind : std::uint8_t {
  kRequest = 1,
  kReply = 2,
  kNackRequest = 3,
  kNackReply = 4,
  kBusy = 5,
  kEcho = 6,
  kEchoReply = 7,
};

enum class WireDtype : std::uint8_t { kF32 = 0, kF16 = 1, kBf16 = 2 };

enum class TagAlgorithm : std::uint8_t {
  kNone = 0,              // --no-auth: tag and sequence are zero and not looked at
  kAes256Gmac = 1,        // AES-256-GCM over associated data only (needs AES-NI and PCLMUL on both sides)
  kChaCha20Poly1305 = 2,  // RFC 8439 AEAD over associated data only
};

inline constexpr std::uint16_t kAnyRank = 0xFFFF;    // DataHeader.rank of a broadcast
inline constexpr std::uint16_t kAsAssigned = 0xFFFF;  // DataHeader.slice of a request: "your own slice"
inline constexpr std::uint8_t kWholeSlice = 0xFF;     // DataHeader.part: the parts of a slice, added in order

#pragma pack(push, 1)

struct DataHeader {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint8_t kind;           // DataKind
  std::uint8_t lane;           // 0 or 1: requests of two lanes may be under way at once
  std::uint64_t session;       // random, made by the host at each `serve`
  std::uint32_t generation;    // of the roster
  std::uint32_t step;          // counts forwards of this session and lane; a lower one than the last is stale
  std::uint16_t layer;
  std::uint8_t wire_dtype;     // WireDtype of activations
  std::uint8_t part;           // reply: part, or kWholeSlice. request with a slice: bit mask of parts wanted
  std::uint16_t slice;         // reply: slice of the vector. request: kAsAssigned, or the slice to compute
  std::uint16_t rank;          // reply, nack_request, busy: the sender. else the addressee or kAnyRank
  std::uint16_t num_tokens;
  std::uint16_t top_k;         // experts a token; 0: dense layer, expert 0 with weight 1, no routes sent
  std::uint32_t hidden;
  std::uint32_t message_bytes;  // of the whole message
  std::uint32_t offset;         // of this fragment's payload in the message
  std::uint32_t fragment_bytes; // payload bytes in this datagram
  std::uint32_t key_id;         // which session key made the tag
  std::uint64_t sequence;       // of that key and direction, strictly increasing: nonce and replay window
  std::uint8_t tag[16];
};
static_assert(sizeof(DataHeader) == 84);

// Request payload: Route[num_tokens][top_k] (ascending expert id in each token), then activations
// [num_tokens, hidden] in wire_dtype. A layer's shared expert has the id num_experts, so it comes last.
struct Route {
  std::uint32_t expert;
  float weight;
};
static_assert(sizeof(Route) == 8);

struct Range {
  std::uint32_t offset;
  std::uint32_t bytes;
};
static_assert(sizeof(Range) == 8);

// ---------------------------------------------------------------------------------------------------------
// Control plane (TCP). Frames: ControlHeader + payload; a reply repeats request_id.
//
// The first frame is a hello in clear. Keyed connections follow Noise KNpsk2 in spirit: the duck knows the
// fleet's public key, both know the enrolment secret, both send an ephemeral X25519 key. After that each
// frame travels as u32 length + one secretstream (XChaCha20-Poly1305) message holding header and payload.
// ---------------------------------------------------------------------------------------------------------
enum class ControlType : std::uint16_t {
  kHello = 1,
  kHelloReply = 2,
  kOk = 3,
  kError = 4,
  kIdentity = 10,
  kIdentityReply = 11,
  kConfigure = 12,   // start of a session: everything both sides must agree upon
  kAssign = 13,      // the chunks that make up this duck's shard, in canonical order
  kHave = 20,        // digests -> a byte each: 1 held, 0 not
  kHaveReply = 21,
  kChunkBegin = 22,
  kChunkData = 23,
  kChunkEnd = 24,    // answered by kOk when digest and packing were good
  kChunkDrop = 25,
  kStats = 30,       // -> JSON
  kStatsReply = 31,
  kProbe = 32,       // -> JSON
  kProbeReply = 33,
  kShutdown = 40,    // end the daemon; payload: ShutdownRequest
};

inline constexpr std::uint32_t kMaxControlPayload = 1u << 20;
inline constexpr std::uint32_t kMaxChunkBytes = 1u << 28;
inline constexpr std::uint16_t kMaxTokens = 128;  // a longer batch is sent as several requests
inline constexpr std::uint16_t kMaxTopK = 64;
inline constexpr std::uint32_t kMaxHidden = 1u << 16;

struct ControlHeader {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t type;  // ControlType
  std::uint32_t request_id;
  std::uint32_t length;  // of the payload
};
static_assert(sizeof(ControlHeader) == 16);

#pragma pack(pop)

}  // namespace duckfleet::wire
