#include "link.hpp"

#include <array>

#include "udp_link.hpp"

namespace duckfleet::fabric {
namespace {

constexpr std::array kKinds = {LinkKind{"udp", &open_udp_link}};

}  // namespace

std::span<const LinkKind> link_kinds() { return kKinds; }

std::unique_ptr<Link> open_link(std::string_view kind, const DomainConfig& domain) {
  std::string known;
  for (const LinkKind& k : kKinds) {
    if (k.name == kind) return k.open(domain);
    known += (known.empty() ? "" : ", ") + std::string(k.name);
  }
  throw LinkError("no transport is called '" + std::string(kind) + "'; this build has: " + known);
}

}  // namespace duckfleet::fabric
