// Power limits, temperatures and throttling: what holds a box back. From /sys.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "report.hpp"

namespace duckfleet::duckd::probe {
namespace fs = std::filesystem;
namespace {

constexpr const char* kPowercap = "/sys/class/powercap";

std::vector<fs::path> sorted_entries(const fs::path& directory, std::string_view prefix) {
  std::vector<fs::path> found;
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(directory, failure)) {
    if (entry.path().filename().string().starts_with(prefix)) found.push_back(entry.path());
  }
  std::ranges::sort(found);
  return found;
}

Json throttling() {
  Json counts = Json::object();
  for (const fs::path& cpu : sorted_entries("/sys/devices/system/cpu", "cpu")) {
    const fs::path directory = cpu / "thermal_throttle";
    for (const fs::path& file : sorted_entries(directory, "")) {
      const std::string name = file.filename();
      if (!name.ends_with("_throttle_count")) continue;
      const Json value = number_or_null(file);
      if (!value.is_null()) counts[cpu.filename().string() + "/" + name] = value;
    }
  }
  return counts;
}

}  // namespace

// By both interfaces, the processor's own registers and the memory-mapped ones: the lower limit holds.
void add_power_limits(Report& report) {
  Json limits = Json::array();
  for (const char* interface : {"intel-rapl", "intel-rapl-mmio"}) {
    const fs::path package = fs::path(kPowercap) / interface / (std::string(interface) + ":0");
    for (const char* constraint : {"constraint_0", "constraint_1", "constraint_2"}) {
      const Json name = line_or_null(package / (std::string(constraint) + "_name"));
      const Json limit = number_or_null(package / (std::string(constraint) + "_power_limit_uw"));
      if (name.is_null() || limit.is_null()) continue;
      const Json enabled = number_or_null(package / "enabled");
      limits.push_back({{"interface", interface},
                        {"constraint", name},
                        {"limit_uw", limit},
                        {"enabled", enabled.is_null() ? Json(nullptr) : Json(enabled != 0)}});
    }
  }
  if (limits.empty()) {
    report.unknown("power_limits", std::string(kPowercap) + " has no limit of a package");
  } else {
    report.took("power_limits", kPowercap);
  }
  report.values["power_limits"] = std::move(limits);
}

void add_heat(Report& report, const char* key) {
  Json zones = Json::array();
  for (const fs::path& zone : sorted_entries("/sys/class/thermal", "thermal_zone")) {
    const Json milli = number_or_null(zone / "temp");
    zones.push_back({{"type", line_or_null(zone / "type")},
                     {"celsius", milli.is_null() ? Json(nullptr) : Json(milli.get<double>() / 1000)}});
  }
  Json throttled = throttling();
  if (zones.empty()) report.unknown(std::string(key) + ".zones", "no readable thermal zone under /sys/class/thermal");
  if (throttled.empty()) report.unknown(std::string(key) + ".throttled", "no cpu has thermal_throttle counters");
  report.took(key, "/sys/class/thermal, /sys/devices/system/cpu");
  report.values[key] = {{"zones", std::move(zones)}, {"throttled", std::move(throttled)}};
}

}  // namespace duckfleet::duckd::probe
