// Network interfaces: from /sys/class/net.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "ethtool.hpp"
#include "report.hpp"

namespace duckfleet::duckd::probe {
namespace fs = std::filesystem;
namespace {

Json counters(const fs::path& directory) {
  Json values = Json::object();
  std::vector<std::string> names;
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(directory, failure)) names.push_back(entry.path().filename());
  std::ranges::sort(names);
  for (const std::string& name : names) values[name] = number_or_null(directory / name);
  return values;
}

Json driver(const fs::path& interface) {
  std::error_code failure;
  const fs::path link = fs::read_symlink(interface / "device" / "driver", failure);
  return failure ? Json(nullptr) : Json(link.filename().string());
}

}  // namespace

void add_network(Report& report) {
  Json list = Json::array();
  std::vector<fs::path> interfaces;
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator("/sys/class/net", failure)) {
    if (fs::is_directory(entry.path(), failure)) interfaces.push_back(entry.path());
  }
  std::ranges::sort(interfaces);
  for (const fs::path& path : interfaces) {
    const std::string name = path.filename();
    if (name == "lo") continue;
    Json speed = number_or_null(path / "speed");
    if (speed.is_number() && speed.get<std::int64_t>() < 0) speed = nullptr;  // the driver's "unknown"
    if (speed.is_null()) report.unknown("nics." + name + ".speed", "the driver reports none (no link, or a virtual interface)");
    Json card = {{"name", name},
                    {"mac", line_or_null(path / "address")},
                    {"driver", driver(path)},
                    {"operstate", line_or_null(path / "operstate")},
                    {"carrier", number_or_null(path / "carrier")},
                    {"carrier_changes", number_or_null(path / "carrier_changes")},
                    {"speed_mbit_per_s", speed},
                    {"duplex", line_or_null(path / "duplex")},
                    {"mtu", number_or_null(path / "mtu")},
                    {"counters", counters(path / "statistics")}};
    add_driver(report, name, card);
    list.push_back(std::move(card));
  }
  if (failure) report.unknown("nics", "/sys/class/net: " + failure.message());
  report.took("nics", "/sys/class/net");
  report.values["nics"] = std::move(list);
}

}  // namespace duckfleet::duckd::probe
