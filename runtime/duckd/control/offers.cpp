#include "offers.hpp"

#include <algorithm>
#include <string>

namespace duckfleet::duckd {

using wire::ErrorCode;
using wire::Refusal;

std::optional<Refusal> Offers::add(std::span<const std::byte> payload, Clock::time_point now) {
  wire::ChunkOffer offer;
  if (!wire::take_only(payload, offer)) return Refusal{ErrorCode::kMalformed, "chunk offer: the wrong length"};
  if (offer.lifetime_s == 0 || offer.lifetime_s > wire::kMaxOfferSeconds) {
    return Refusal{ErrorCode::kMalformed, "an offer for " + std::to_string(offer.lifetime_s) + " s; 1 to " +
                                              std::to_string(wire::kMaxOfferSeconds) + " are taken"};
  }
  Offer made{{}, make_digest(offer.digest), now + std::chrono::seconds(+offer.lifetime_s)};
  std::ranges::copy(offer.secret, made.secret.begin());
  const std::lock_guard lock(mutex_);
  std::erase_if(offers_, [&](const auto& entry) { return entry.second.ends <= now; });
  if (offers_.size() >= wire::kMaxOffers) {
    return Refusal{ErrorCode::kTooLarge, "there are " + std::to_string(offers_.size()) + " offers already; try again"};
  }
  if (!offers_.emplace(offer.ticket, made).second) {
    return Refusal{ErrorCode::kMalformed, "there is an offer with this ticket already"};
  }
  return std::nullopt;
}

std::optional<wire::TicketSecret> Offers::secret(std::uint64_t ticket, Clock::time_point now) const {
  const std::lock_guard lock(mutex_);
  const auto found = offers_.find(ticket);
  if (found == offers_.end() || found->second.ends <= now) return std::nullopt;
  return found->second.secret;
}

std::optional<Digest> Offers::take(std::uint64_t ticket, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  const auto found = offers_.find(ticket);
  if (found == offers_.end() || found->second.ends <= now) return std::nullopt;
  const Digest digest = found->second.digest;
  offers_.erase(found);
  return digest;
}

}  // namespace duckfleet::duckd
