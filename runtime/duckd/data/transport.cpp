#include "transport.hpp"

#include <arpa/inet.h>

#include <array>

#include "udp_transport.hpp"

namespace duckfleet::duckd {
namespace {

struct Entry {
  std::string_view name;
  std::unique_ptr<Transport> (*open)(const TransportOptions&, std::string&);
};

constexpr std::array kTransports = {Entry{"udp", open_udp}};

}  // namespace

std::string to_text(const Peer& peer) {
  std::array<char, INET_ADDRSTRLEN> text{};
  const in_addr address{peer.address};
  inet_ntop(AF_INET, &address, text.data(), text.size());
  return std::string(text.data()) + ":" + std::to_string(ntohs(peer.port));
}

std::vector<std::string_view> transport_names() {
  std::vector<std::string_view> names;
  for (const Entry& entry : kTransports) names.push_back(entry.name);
  return names;
}

std::unique_ptr<Transport> open_transport(std::string_view name, const TransportOptions& options, std::string& error) {
  for (const Entry& entry : kTransports) {
    if (entry.name == name) return entry.open(options, error);
  }
  error = "the transport '" + std::string(name) + "' is unknown; there is:";
  for (const Entry& entry : kTransports) (error += ' ') += entry.name;
  return nullptr;
}

}  // namespace duckfleet::duckd
