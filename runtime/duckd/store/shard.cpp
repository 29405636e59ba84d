#include "shard.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "auth.hpp"
#include "parse.hpp"

namespace duckfleet::duckd {
namespace {

using wire::ErrorCode;
using wire::Refusal;

std::string text(std::uint64_t number) { return std::to_string(number); }

std::string format_text(std::uint8_t format) {
  return format < kernels::kNumFormats ? kernels::format_name(static_cast<kernels::Format>(format)) : text(format);
}

Refusal differs(ErrorCode code, std::string what, std::string ours, std::string theirs) {
  return {code, what + " differs: this duck was assigned " + ours + ", the host serves " + theirs +
                    "; place the model again, or serve the roster that was placed"};
}

Refusal unfit(const StoredChunk& chunk, std::string why) {
  return {ErrorCode::kChunkUnfit, "chunk " + to_hex(chunk.digest) + " does not fit the assignment: " + why};
}

std::optional<Refusal> check_chunk(const StoredChunk& chunk, const wire::Assign& assign) {
  const auto& packed = chunk.packed;
  if (static_cast<std::uint8_t>(packed.format()) != assign.format) {
    return unfit(chunk, "its format is " + format_text(static_cast<std::uint8_t>(packed.format())) + ", not " +
                            format_text(assign.format));
  }
  if (packed.hidden() != assign.hidden) {
    return unfit(chunk, "its hidden size is " + text(packed.hidden()) + ", not " + text(assign.hidden));
  }
  if (packed.layer() >= assign.num_layers) {
    return unfit(chunk, "its layer is " + text(packed.layer()) + " of " + text(assign.num_layers));
  }
  if (packed.slice() >= assign.tp) return unfit(chunk, "its slice is " + text(packed.slice()) + " of " + text(assign.tp));
  if (packed.part() >= 8) return unfit(chunk, "its part is " + text(packed.part()) + ", at most 7 is possible");
  return std::nullopt;
}

}  // namespace

std::optional<Refusal> parse_assignment(std::span<const std::byte> payload, Assignment& assignment) {
  const auto malformed = [](std::string why) { return Refusal{ErrorCode::kMalformed, "assignment: " + std::move(why)}; };
  wire::Assign& assign = assignment.header;
  if (!wire::take(payload, assign)) return malformed("too short");
  if (assign.num_chunks > wire::kMaxAssign) return malformed(text(assign.num_chunks) + " chunks are too many");
  if (payload.size() != std::size_t{assign.num_chunks} * sizeof(Digest)) return malformed("the digests are cut short");
  if (assign.tp == 0 || assign.tp > wire::kMaxTp) return malformed("tp is " + text(assign.tp));
  // A spare has a rank past the last; it owns no slice, holds parts of others' and answers for what it is asked.
  if (assign.rank >= wire::kMaxRanks) return malformed("rank " + text(assign.rank) + " of " + text(assign.tp));
  if (assign.format >= kernels::kNumFormats) return malformed("format " + text(assign.format) + " is unknown");
  if (assign.hidden == 0 || assign.hidden > wire::kMaxHidden) return malformed("hidden is " + text(assign.hidden));
  if (assign.num_layers == 0 || assign.num_layers > wire::kMaxLayers) {
    return malformed("num_layers is " + text(assign.num_layers));
  }
  assignment.digests.resize(assign.num_chunks);
  if (!payload.empty()) std::memcpy(assignment.digests.data(), payload.data(), payload.size());
  return std::nullopt;
}

std::shared_ptr<const Shard> Shard::build(const Assignment& assignment, const ChunkStore& store, Refusal& refusal) {
  auto shard = std::make_shared<Shard>();
  shard->assignment_ = assignment.header;
  Hasher hasher;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::map<std::uint16_t, std::vector<kernels::PackedChunk>>> parts;
  std::set<std::tuple<std::uint32_t, std::uint16_t, std::uint16_t, std::uint32_t>> experts;
  for (const Digest& digest : assignment.digests) {
    hasher.update(std::as_bytes(std::span(digest)));
    auto chunk = store.find(digest);
    if (!chunk) {
      refusal = {ErrorCode::kChunkMissing, "chunk " + to_hex(digest) + " is not held here; place the model again"};
      return nullptr;
    }
    if (auto error = check_chunk(*chunk, assignment.header)) {
      refusal = std::move(*error);
      return nullptr;
    }
    const auto& packed = chunk->packed;
    for (const auto& section : packed.sections()) {
      if (!experts.emplace(packed.layer(), packed.slice(), packed.part(), section.expert).second) {
        refusal = unfit(*chunk, "expert " + text(section.expert) + " of that part came with another chunk already");
        return nullptr;
      }
    }
    parts[{packed.layer(), packed.slice()}][packed.part()].push_back(packed);
    shard->chunks_.push_back(std::move(chunk));
  }
  shard->digest_ = hasher.finish();
  for (auto& [place, by_part] : parts) {
    Slice& slice = shard->slices_[place];
    for (auto& [index, chunks] : by_part) slice.push_back({index, std::move(chunks)});
  }
  return shard;
}

bool Shard::extends(const Shard& other) const {
  wire::Assign ours = assignment_, theirs = other.assignment_;
  ours.generation = theirs.generation;
  ours.num_chunks = theirs.num_chunks;
  if (std::memcmp(&ours, &theirs, sizeof ours) != 0) return false;
  std::set<Digest> held;
  for (const auto& chunk : chunks_) held.insert(chunk->digest);
  return std::ranges::all_of(other.chunks_, [&](const auto& chunk) { return held.contains(chunk->digest); });
}

bool Shard::uses(const Digest& digest) const noexcept {
  return std::ranges::any_of(chunks_, [&](const auto& chunk) { return chunk->digest == digest; });
}

bool Shard::is_within(const std::set<Digest>& digests) const noexcept {
  return std::ranges::all_of(chunks_, [&](const auto& chunk) { return digests.contains(chunk->digest); });
}

const Slice* Shard::find(std::uint32_t layer, std::uint32_t slice) const noexcept {
  const auto found = slices_.find({layer, slice});
  return found == slices_.end() ? nullptr : &found->second;
}

std::optional<Refusal> check_session(const wire::Configure& config, const Shard* shard) {
  const auto malformed = [](std::string why) { return Refusal{ErrorCode::kMalformed, "session: " + std::move(why)}; };
  if (config.session == 0) return malformed("0 is no session");
  if (config.host_port == 0) return malformed("the host's port is 0");
  if (config.reply_fragment_bytes < wire::kFragmentUnitBytes || config.reply_fragment_bytes > wire::kMaxFragmentBytes ||
      config.reply_fragment_bytes % wire::kFragmentUnitBytes != 0) {
    return malformed("reply fragments of " + text(config.reply_fragment_bytes) + " bytes");
  }
  const auto algorithm = static_cast<wire::TagAlgorithm>(config.tag_algorithm);
  if (!wire::tag_algorithm_available(algorithm)) {
    return Refusal{ErrorCode::kTagAlgorithm, "tag algorithm " + text(config.tag_algorithm) +
                                                 " is unknown or this CPU cannot compute it; usable: bit mask " +
                                                 text(wire::available_tag_algorithms())};
  }
  if (algorithm != wire::TagAlgorithm::kNone && config.domain_key_id == config.duck_key_id) {
    return malformed("both keys have the id " + text(config.duck_key_id));
  }
  if (wire::element_bytes(static_cast<wire::WireDtype>(config.wire_dtype)) == 0) {
    return Refusal{ErrorCode::kWireDtype, "activations of dtype " + text(config.wire_dtype) +
                                              " are not known here; f32 (0), f16 (1) and bf16 (2) are"};
  }
  if (shard == nullptr) {
    return Refusal{ErrorCode::kNotAssigned, "this duck has no shard assigned; place the model first"};
  }
  const wire::Assign& ours = shard->assignment();
  const Digest model = make_digest(ours.model_digest);
  const Digest their_model = make_digest(config.model_digest);
  if (model != their_model) return differs(ErrorCode::kModelDigest, "the model digest", to_hex(model), to_hex(their_model));
  if (ours.format != config.format) {
    return differs(ErrorCode::kFormat, "the format", format_text(ours.format), format_text(config.format));
  }
  if (ours.tp != config.tp) return differs(ErrorCode::kTp, "tp", text(ours.tp), text(config.tp));
  if (ours.rank != config.rank) return differs(ErrorCode::kRank, "the rank", text(ours.rank), text(config.rank));
  if (ours.num_layers != config.num_layers) {
    return differs(ErrorCode::kNumLayers, "the number of layers", text(ours.num_layers), text(config.num_layers));
  }
  if (ours.hidden != config.hidden) {
    return differs(ErrorCode::kHidden, "the hidden size", text(ours.hidden), text(config.hidden));
  }
  const Digest their_shard = make_digest(config.shard_digest);
  if (shard->digest() != their_shard) {
    return differs(ErrorCode::kShardDigest, "the shard digest", to_hex(shard->digest()), to_hex(their_shard));
  }
  return std::nullopt;
}

}  // namespace duckfleet::duckd
