#include "session.hpp"

#include <arpa/inet.h>

#include <cstring>
#include <utility>

namespace duckfleet::duckd {

using wire::DropReason;

Session::Session(const wire::Configure& config, std::shared_ptr<const Shard> shard, wire::DatagramKey domain_key,
                 wire::DatagramKey duck_key)
    : config_(config), shards_{std::move(shard)}, shard_(shards_.back().get()), domain_key_{domain_key, config.domain_key_id, {}},
      duck_key_{duck_key, config.duck_key_id, {}} {
  std::memcpy(&host_.address, config.host_address, sizeof host_.address);
  host_.port = htons(config.host_port);
  sodium_memzero(config_.domain_key, sizeof config_.domain_key);
  sodium_memzero(config_.duck_key, sizeof config_.duck_key);
}

std::shared_ptr<Session> Session::create(const wire::Configure& config, std::shared_ptr<const Shard> shard,
                                         wire::Refusal& refusal) {
  const auto algorithm = static_cast<wire::TagAlgorithm>(config.tag_algorithm);
  auto domain_key = wire::DatagramKey::create(algorithm, config.domain_key);
  auto duck_key = wire::DatagramKey::create(algorithm, config.duck_key);
  if (!domain_key || !duck_key) {
    refusal = {wire::ErrorCode::kTagAlgorithm, "the tag algorithm cannot be computed here"};
    return nullptr;
  }
  std::shared_ptr<Session> session(new Session(config, std::move(shard), *domain_key, *duck_key));
  for (Lane& lane : session->lanes) {
    for (Slot& slot : lane.slots) {
      if (!slot.assembly.reserve(config.hidden, static_cast<wire::WireDtype>(config.wire_dtype))) {
        refusal = {wire::ErrorCode::kNoMemory, "no memory for the request slots of hidden size " +
                                                   std::to_string(config.hidden)};
        return nullptr;
      }
    }
  }
  return session;
}

void Session::extend(std::shared_ptr<const Shard> shard) {
  shards_.push_back(std::move(shard));
  shard_.store(shards_.back().get(), std::memory_order_release);
}

DropReason Session::admit(const wire::Datagram& datagram, std::span<std::byte> bytes, const Peer& from) noexcept {
  const wire::DataHeader& header = datagram.header;
  if (from.address != host_.address) return DropReason::kForeignAddress;
  if (header.session != config_.session) return DropReason::kWrongSession;
  if (header.generation < config_.generation) return DropReason::kStaleGeneration;
  if (header.generation > config_.generation) return DropReason::kWrongGeneration;
  if (header.rank != wire::kAnyRank && header.rank != config_.rank) return DropReason::kWrongRank;
  if (duck_key_.key.algorithm() == wire::TagAlgorithm::kNone) return DropReason::kNone;

  const bool of_domain = header.key_id == domain_key_.id;
  if (!of_domain && header.key_id != duck_key_.id) return DropReason::kUnknownKey;
  SessionKey& key = of_domain ? domain_key_ : duck_key_;
  switch (key.window.check(header.sequence)) {
    case wire::ReplayWindow::Verdict::kReplayed:
      return DropReason::kReplayed;
    case wire::ReplayWindow::Verdict::kTooOld:
      return DropReason::kTooOld;
    case wire::ReplayWindow::Verdict::kFresh:
      break;
  }
  if (!key.key.verify(bytes, wire::Direction::kHostToDuck)) return DropReason::kBadTag;
  key.window.accept(header.sequence);
  return DropReason::kNone;
}

wire::DataHeader Session::header_for(wire::DataKind kind, const wire::DataHeader& about) const noexcept {
  wire::DataHeader header = about;
  header.kind = static_cast<std::uint8_t>(kind);
  header.session = config_.session;
  header.generation = config_.generation;
  header.rank = config_.rank;
  header.message_bytes = 0;
  header.offset = 0;
  header.fragment_bytes = 0;
  header.key_id = duck_key_.id;
  return header;
}

}  // namespace duckfleet::duckd
