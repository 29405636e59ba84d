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

// Fragments of requests and replies start at a multiple of this, and are a multiple of it long unless they end the
// message: what has arrived is then one bit a unit, whatever the sender's MTU.
inline constexpr std::uint32_t kFragmentUnitBytes = 64;
inline constexpr std::uint32_t kMaxNackRanges = 128;       // in one nack_request or nack_reply
inline constexpr std::uint32_t kRestOfMessage = 0xFFFFFFFF;  // Range.bytes: up to the message's end

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
static_assert(sizeof(DataHeader) == 80);

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

// Nonce of a datagram's tag, 12 bytes: the direction as u32, then DataHeader.sequence.
enum class Direction : std::uint32_t { kHostToDuck = 0, kDuckToHost = 1 };

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
  kPeerHello = 5,    // instead of kHello: a duck that fetches a chunk, with a ticket of the host
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
  kChunkKeep = 26,   // digests, at most kMaxAssign: everything else is forgotten, an assignment that needs it too
  kChunkOffer = 27,  // to a duck that holds a chunk: whoever has this ticket may get it, once
  kChunkFetch = 28,  // to a duck that lacks one: get it there; answered by kOk when it is kept, as kChunkBegin when held
  kChunkGet = 29,    // from duck to duck: the ticket's chunk
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
inline constexpr std::uint32_t kMaxLayers = 1u << 12;
inline constexpr std::uint16_t kMaxTp = 64;
inline constexpr std::uint16_t kMaxRanks = 128;  // ranks from tp on are spares: no slice of their own, parts of others'
inline constexpr std::uint32_t kDigestBytes = 32;  // BLAKE2b-256
inline constexpr std::uint32_t kMaxHave = 8192;    // digests in one kHave
inline constexpr std::uint32_t kMaxAssign = 16384;  // digests in one kAssign

struct ControlHeader {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t type;  // ControlType
  std::uint32_t request_id;
  std::uint32_t length;  // of the payload
};
static_assert(sizeof(ControlHeader) == 16);

// -- hello, in clear ----------------------------------------------------------------------------------------
enum class ControlMode : std::uint8_t {
  kPlain = 0,  // --no-auth on both sides, and only then
  kKeyed = 1,
};

struct Hello {
  std::uint8_t mode;  // ControlMode
  std::uint8_t zero[7];
  std::uint8_t ephemeral[32];  // X25519 public key of this connection; zero in plain mode
};
static_assert(sizeof(Hello) == 40);

struct HelloReply {
  std::uint8_t mode;  // as in Hello; anything else is answered with kError
  std::uint8_t zero[7];
  std::uint8_t ephemeral[32];
  std::uint8_t confirm[16];        // proves that the duck knows the enrolment secret and the fleet's public key
  std::uint8_t stream_header[24];  // of the secretstream from duck to host
};
static_assert(sizeof(HelloReply) == 80);
// After a kPeerHello the keys come from the ticket's secret and both ephemeral keys; `confirm` proves that the other duck
// knows it. All else is as in keyed mode, and the first frame is the only one that is taken: kChunkGet.
struct PeerHello {
  std::uint64_t ticket;
  std::uint8_t ephemeral[32];
};
static_assert(sizeof(PeerHello) == sizeof(Hello));

// In keyed mode the host now sends a frame `u32 24, stream_header[24]` of its own stream; all that follows is sealed.

// -- errors -------------------------------------------------------------------------------------------------
enum class ErrorCode : std::uint16_t {
  // the frame or the connection
  kMalformed = 1,
  kProtocolVersion = 2,
  kAuthRequired = 3,       // plain hello to a duck that has keys
  kAuthNotConfigured = 4,  // keyed hello to a duck started with --no-auth
  kTooManyConnections = 5,
  kUnknownType = 6,
  kTooLarge = 7,
  kInternal = 8,
  // identity: host and duck disagree about what is served
  kModelDigest = 20,
  kShardDigest = 21,
  kRank = 22,
  kTp = 23,
  kFormat = 24,
  kNumLayers = 25,
  kHidden = 26,
  kWireDtype = 27,
  kTagAlgorithm = 28,
  // order and placement
  kStaleGeneration = 30,
  kNotAssigned = 31,
  kChunkMissing = 32,  // an assigned chunk is not held
  kChunkUnfit = 33,    // an assigned chunk's format, layer, hidden size or place does not fit the assignment
  // chunks
  kChunkDigest = 40,
  kChunkInvalid = 41,
  kChunkSize = 42,
  kNoMemory = 43,
  kChunkInUse = 44,
  kChunkOrder = 45,  // data without begin, end before all bytes, begin twice
  kPeerFailed = 46,  // a chunk that was to be fetched did not come from the other duck
};

struct ErrorReply {  // then UTF-8 text for a person, up to the end of the payload
  std::uint16_t code;  // ErrorCode
  std::uint16_t zero;
};
static_assert(sizeof(ErrorReply) == 4);

// -- identity, assignment, session --------------------------------------------------------------------------
inline constexpr std::uint8_t kIdentityAssigned = 1;    // IdentityReply.flags
inline constexpr std::uint8_t kIdentityConfigured = 2;

struct IdentityReply {
  std::uint16_t protocol_version;
  std::uint16_t rank;    // of the assignment, as are tp, format, num_layers, hidden and the digests; else zero
  std::uint16_t tp;
  std::uint8_t format;   // kernels' format id
  std::uint8_t flags;
  std::uint32_t generation;       // the highest of a roster (Configure) that this duck has accepted
  std::uint32_t plan_generation;  // the highest of a plan (Assign)
  std::uint32_t num_layers;
  std::uint32_t hidden;
  std::uint32_t num_chunks;    // held, assigned or not
  std::uint32_t num_assigned;  // chunks of the assignment
  std::uint64_t held_bytes;  // packed
  std::uint64_t session;     // 0: none configured
  std::uint64_t instance;    // random at each start of duckd
  std::uint64_t mem_total_bytes;
  std::uint64_t mem_available_bytes;
  std::uint16_t num_threads;  // of the compute team
  std::uint16_t num_cpus;
  std::uint16_t data_port;
  std::uint8_t tag_algorithms;  // bit i: TagAlgorithm i
  std::uint8_t wire_dtypes;     // bit i: WireDtype i
  std::uint8_t model_digest[32];
  std::uint8_t shard_digest[32];  // BLAKE2b-256 of the assigned digests, one after the other, in canonical order
  char kernels[16];               // implementation in use; zero-padded, as the next two
  char duckd_version[32];
  char hostname[64];
};
static_assert(sizeof(IdentityReply) == 256);

struct Assign {  // then num_chunks digests of 32 bytes, canonical order
  std::uint32_t generation;  // of the plan
  std::uint32_t num_layers;
  std::uint32_t hidden;
  std::uint16_t rank;
  std::uint16_t tp;
  std::uint8_t format;
  std::uint8_t zero[3];
  std::uint32_t num_chunks;
  std::uint8_t model_digest[32];
};
static_assert(sizeof(Assign) == 56);

// A session is configured on an assigned duck; each field that both sides know is compared and has its ErrorCode.
// Keys are fresh for each Configure: their sequences start anew, and a nonce must never be used twice.
struct Configure {
  std::uint64_t session;  // random, not 0
  std::uint32_t generation;  // of the roster
  std::uint32_t num_layers;
  std::uint32_t hidden;
  std::uint16_t rank;
  std::uint16_t tp;
  std::uint8_t format;
  std::uint8_t wire_dtype;     // WireDtype of requests
  std::uint8_t tag_algorithm;  // TagAlgorithm of both keys
  std::uint8_t zero;
  std::uint8_t host_address[4];         // IPv4, network order: where requests come from and replies go to
  std::uint16_t host_port;
  std::uint16_t reply_fragment_bytes;   // payload of a reply datagram at most; a multiple of kFragmentUnitBytes
  std::uint32_t domain_key_id;          // of requests that every duck of the domain must be able to check
  std::uint32_t duck_key_id;            // of replies, and of unicasts to this duck
  std::uint64_t pace_bytes_per_s;       // replies are not sent faster; 0: as fast as the link takes them
  std::uint8_t domain_key[32];
  std::uint8_t duck_key[32];
  std::uint8_t model_digest[32];
  std::uint8_t shard_digest[32];
};
static_assert(sizeof(Configure) == 180);

// -- chunks -------------------------------------------------------------------------------------------------
// kHave: digests of 32 bytes, at most kMaxHave. kHaveReply: a byte each, 1 held, 0 not.
struct ChunkBegin {  // answered by kOk: no payload, or a byte 1 when it is held already and nothing is to follow.
                     // Then kChunkData, unanswered (ChunkData and bytes, in order), then kChunkEnd, answered.
  std::uint8_t digest[32];
  std::uint64_t total_bytes;
};
static_assert(sizeof(ChunkBegin) == 40);

struct ChunkData {  // then the bytes
  std::uint64_t offset;
};
static_assert(sizeof(ChunkData) == 8);

struct ChunkDrop {  // kChunkDrop, answered
  std::uint8_t digest[32];
};
static_assert(sizeof(ChunkDrop) == 32);

// -- chunks from duck to duck -------------------------------------------------------------------------------
// The host gives both ducks the same ticket. kChunkGet has no payload; its answer are kChunkBegin, kChunkData and
// kChunkEnd as a host would send them, or kError.
inline constexpr std::uint32_t kMaxOffers = 64;  // that stand at a time
inline constexpr std::uint32_t kMaxOfferSeconds = 3600;
inline constexpr std::uint32_t kMaxFetchMs = 3600'000;

struct ChunkOffer {  // answered
  std::uint64_t ticket;  // random, as is the secret
  std::uint8_t secret[32];
  std::uint8_t digest[32];
  std::uint32_t lifetime_s;  // 1 to kMaxOfferSeconds
};
static_assert(sizeof(ChunkOffer) == 76);

struct ChunkFetch {
  std::uint64_t ticket;
  std::uint8_t secret[32];
  std::uint8_t digest[32];
  std::uint8_t address[4];  // IPv4, network order: the control port of the duck that holds it
  std::uint16_t port;
  std::uint32_t silence_ms;  // give up when it is silent for so long, 1 to kMaxFetchMs
  std::uint32_t limit_ms;    // and when the chunk is not there after so long
};
static_assert(sizeof(ChunkFetch) == 86);

// -- probe, shutdown ----------------------------------------------------------------------------------------
inline constexpr std::uint32_t kProbeMeasure = 1;    // ProbeRequest.flags: bandwidth and frequency (part of a second)
inline constexpr std::uint32_t kProbeMemory = 2;     // pattern test over free memory, for `seconds`
inline constexpr std::uint32_t kProbeSustained = 4;  // frequency, then kernels, for `seconds` each: past the turbo window
inline constexpr std::uint32_t kMaxProbeSeconds = 900;

struct ProbeRequest {
  std::uint32_t flags;
  std::uint32_t seconds;  // of each long measurement that is asked for
};
static_assert(sizeof(ProbeRequest) == 8);

inline constexpr std::uint32_t kShutdownDropStore = 1;  // ShutdownRequest.flags: remove the chunks under --store

struct ShutdownRequest {
  std::uint32_t flags;
};
static_assert(sizeof(ShutdownRequest) == 4);

#pragma pack(pop)

}  // namespace duckfleet::wire
