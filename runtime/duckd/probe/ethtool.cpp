#include "ethtool.hpp"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <vector>

namespace duckfleet::duckd::probe {
namespace {

constexpr std::uint32_t kMaxCounters = 4096;
constexpr std::uint32_t kMaxModeWords = 127;

// Speeds of the link mode bits that carry twisted pairs or what a host's port may have (linux/ethtool.h).
struct Mode {
  unsigned bit;
  std::int64_t mbps;
};
constexpr std::array kModes = {
    Mode{ETHTOOL_LINK_MODE_10baseT_Half_BIT, 10},       Mode{ETHTOOL_LINK_MODE_10baseT_Full_BIT, 10},
    Mode{ETHTOOL_LINK_MODE_100baseT_Half_BIT, 100},     Mode{ETHTOOL_LINK_MODE_100baseT_Full_BIT, 100},
    Mode{ETHTOOL_LINK_MODE_1000baseT_Half_BIT, 1000},   Mode{ETHTOOL_LINK_MODE_1000baseT_Full_BIT, 1000},
    Mode{ETHTOOL_LINK_MODE_2500baseT_Full_BIT, 2500},   Mode{ETHTOOL_LINK_MODE_5000baseT_Full_BIT, 5000},
    Mode{ETHTOOL_LINK_MODE_10000baseT_Full_BIT, 10000},
};

class Driver {
 public:
  explicit Driver(const std::string& interface) : fd_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    interface.copy(request_.ifr_name, IFNAMSIZ - 1);
  }
  ~Driver() {
    if (fd_ >= 0) close(fd_);
  }
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // False, and why() says so, when the driver does not know the command or its device is gone.
  bool ask(void* command) {
    request_.ifr_data = static_cast<char*>(command);
    if (fd_ >= 0 && ioctl(fd_, SIOCETHTOOL, &request_) == 0) return true;
    error_ = errno;
    return false;
  }

  std::string why() const { return std::strerror(error_); }
  bool device_gone() const { return error_ == ENODEV; }

 private:
  int fd_;
  ifreq request_{};
  int error_ = 0;
};

template <std::size_t N>
std::string text_of(const char (&field)[N]) {
  return std::string(trimmed({field, strnlen(field, N)}));
}

// Commands end in a flexible array: room for header and entries, 8-byte aligned.
template <typename Header>
std::vector<std::uint64_t> with_room(std::size_t entry_bytes, std::size_t count) {
  return std::vector<std::uint64_t>((sizeof(Header) + entry_bytes * count + 7) / 8);
}

Json counters(Driver& driver) {
  auto info_room = with_room<ethtool_sset_info>(sizeof(std::uint32_t), 1);
  auto* info = reinterpret_cast<ethtool_sset_info*>(info_room.data());
  info->cmd = ETHTOOL_GSSET_INFO;
  info->sset_mask = 1ull << ETH_SS_STATS;
  if (!driver.ask(info)) return nullptr;
  std::uint32_t count = 0;
  if (info->sset_mask != 0) std::memcpy(&count, reinterpret_cast<const char*>(info) + sizeof *info, sizeof count);
  count = std::min(count, kMaxCounters);

  auto names_room = with_room<ethtool_gstrings>(ETH_GSTRING_LEN, count);
  auto* names = reinterpret_cast<ethtool_gstrings*>(names_room.data());
  names->cmd = ETHTOOL_GSTRINGS;
  names->string_set = ETH_SS_STATS;
  names->len = count;
  auto values_room = with_room<ethtool_stats>(sizeof(std::uint64_t), count);
  auto* values = reinterpret_cast<ethtool_stats*>(values_room.data());
  values->cmd = ETHTOOL_GSTATS;
  values->n_stats = count;
  if (count != 0 && (!driver.ask(names) || !driver.ask(values))) return nullptr;
  Json list = Json::object();
  const auto* text = reinterpret_cast<const char*>(names) + sizeof *names;
  const auto* numbers = reinterpret_cast<const char*>(values) + sizeof *values;
  for (std::uint32_t i = 0; i < std::min({count, names->len, values->n_stats}); ++i) {
    const char* name = text + std::size_t{i} * ETH_GSTRING_LEN;
    std::uint64_t value = 0;
    std::memcpy(&value, numbers + std::size_t{i} * sizeof value, sizeof value);
    list[std::string(trimmed({name, strnlen(name, ETH_GSTRING_LEN)}))] = value;
  }
  return list;
}

Json fastest(std::span<const std::uint32_t> words) {
  Json speed = nullptr;
  for (const Mode& mode : kModes) {
    if (mode.bit / 32 < words.size() && (words[mode.bit / 32] >> (mode.bit % 32) & 1) != 0) speed = mode.mbps;
  }
  return speed;
}

// The handshake of ETHTOOL_GLINKSETTINGS: asked for no words it answers with how many it wants, negated.
void add_link_modes(Driver& driver, Json& card) {
  auto room = with_room<ethtool_link_settings>(sizeof(std::uint32_t), 3 * kMaxModeWords);
  auto* link = reinterpret_cast<ethtool_link_settings*>(room.data());
  link->cmd = ETHTOOL_GLINKSETTINGS;
  if (!driver.ask(link) || link->link_mode_masks_nwords >= 0) return;
  const int num_words = -link->link_mode_masks_nwords;
  std::ranges::fill(room, 0);
  link->cmd = ETHTOOL_GLINKSETTINGS;
  link->link_mode_masks_nwords = static_cast<decltype(link->link_mode_masks_nwords)>(num_words);
  if (!driver.ask(link) || link->link_mode_masks_nwords != num_words) return;
  std::vector<std::uint32_t> words(3 * static_cast<std::size_t>(num_words));
  std::memcpy(words.data(), reinterpret_cast<const char*>(link) + sizeof *link, words.size() * sizeof words[0]);
  const auto each = static_cast<std::size_t>(num_words);
  const std::span all(words);
  card["offered_mbit_per_s"] = fastest(all.subspan(each, each));
  card["partner_mbit_per_s"] = fastest(all.subspan(2 * each, each));
  card["autonegotiation"] = link->autoneg == AUTONEG_ENABLE;
}

// The letters of ethtool(8): g is a magic packet.
std::string wake_letters(std::uint32_t bits) {
  constexpr std::array kLetters = {std::pair{WAKE_PHY, 'p'},   std::pair{WAKE_UCAST, 'u'}, std::pair{WAKE_MCAST, 'm'},
                                   std::pair{WAKE_BCAST, 'b'}, std::pair{WAKE_ARP, 'a'},   std::pair{WAKE_MAGIC, 'g'},
                                   std::pair{WAKE_MAGICSECURE, 's'}};
  std::string letters;
  for (const auto& [bit, letter] : kLetters) {
    if ((bits & static_cast<std::uint32_t>(bit)) != 0) letters += letter;
  }
  return letters;
}

}  // namespace

void add_driver(Report& report, const std::string& interface, Json& card) {
  const std::string what = "nics." + interface;
  Driver driver(interface);
  ethtool_drvinfo info{};
  info.cmd = ETHTOOL_GDRVINFO;
  if (driver.ask(&info)) {
    card["driver_version"] = text_of(info.version);
    card["firmware"] = text_of(info.fw_version);
    card["bus"] = text_of(info.bus_info);
  }
  card["device_gone"] = driver.device_gone();
  ethtool_wolinfo wake{};
  wake.cmd = ETHTOOL_GWOL;
  if (driver.ask(&wake)) {
    card["wake_supported"] = wake_letters(wake.supported);
    card["wake_on"] = wake.wolopts == 0 ? "d" : wake_letters(wake.wolopts);
  } else {
    report.unknown(what + ".wake_on", "the driver: " + driver.why());
  }
  card["device_gone"] = card["device_gone"] == true || driver.device_gone();
  add_link_modes(driver, card);
  card["driver_counters"] = counters(driver);
  if (card["driver_counters"].is_null()) {
    report.unknown(what + ".driver_counters", "the driver: " + driver.why());
  } else {
    report.took(what + ".driver_counters", "SIOCETHTOOL");
  }
}

}  // namespace duckfleet::duckd::probe
