// CPU, memory, clock, temperatures: from /proc and /sys.
#include <sys/sysinfo.h>

#include <filesystem>
#include <sstream>
#include <string>

#include "affinity.hpp"
#include "report.hpp"

namespace duckfleet::duckd::probe {
namespace fs = std::filesystem;
namespace {

// "key<spaces>:<spaces>value" lines up to an empty one.
Json key_values(const std::string& text) {
  Json values = Json::object();
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line) && !trimmed(line).empty()) {
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    values[std::string(trimmed(std::string_view(line).substr(0, colon)))] =
        std::string(trimmed(std::string_view(line).substr(colon + 1)));
  }
  return values;
}

Json words(const std::string& text) {
  Json list = Json::array();
  std::istringstream stream(text);
  std::string word;
  while (stream >> word) list.push_back(word);
  return list;
}

}  // namespace

void add_cpu(Report& report) {
  std::string reason;
  const auto text = read_file("/proc/cpuinfo", reason);
  Json cpu = Json::object();
  if (text) {
    const Json first = key_values(*text);
    for (const auto& [ours, theirs] : {std::pair{"model", "model name"}, {"vendor", "vendor_id"}, {"microcode", "microcode"}}) {
      cpu[ours] = first.contains(theirs) ? first[theirs] : Json(nullptr);
    }
    cpu["flags"] = words(first.value("flags", std::string()));
  } else {
    report.unknown("cpu", reason);
  }
  cpu["num_cpus"] = get_nprocs_conf();
  cpu["num_online"] = get_nprocs();
  cpu["num_allowed"] = allowed_cpus().size();
  cpu["max_khz"] = number_or_null("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq");
  cpu["governor"] = line_or_null("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  report.values["cpu"] = std::move(cpu);
}

void add_memory(Report& report) {
  std::string reason;
  const auto text = read_file("/proc/meminfo", reason);
  Json memory = Json::object();
  if (text) {
    const Json values = key_values(*text);
    for (const auto& [ours, theirs] : {std::pair{"total_bytes", "MemTotal"}, {"available_bytes", "MemAvailable"},
                                       {"free_bytes", "MemFree"}, {"shared_bytes", "Shmem"}}) {
      if (values.contains(theirs)) {
        memory[ours] = std::strtoull(values[theirs].get<std::string>().c_str(), nullptr, 10) * 1024;
      } else {
        memory[ours] = nullptr;
      }
    }
  } else {
    report.unknown("memory", reason);
  }
  report.values["memory"] = std::move(memory);
}

void add_clock(Report& report) {
  std::string reason;
  Json clock = Json::object();
  if (const auto text = read_file("/proc/driver/rtc", reason)) {
    const Json values = key_values(*text);
    for (const char* key : {"rtc_time", "rtc_date", "batt_status", "24hr"}) {
      clock[key] = values.contains(key) ? values[key] : Json(nullptr);
    }
  } else {
    report.unknown("clock.proc", reason);
  }
  clock["since_epoch_s"] = number_or_null("/sys/class/rtc/rtc0/since_epoch");
  clock["name"] = line_or_null("/sys/class/rtc/rtc0/name");
  clock["set_system_clock"] = line_or_null("/sys/class/rtc/rtc0/hctosys");
  if (clock["since_epoch_s"].is_null()) report.unknown("clock.rtc", "/sys/class/rtc/rtc0/since_epoch cannot be read");
  report.values["clock"] = std::move(clock);
}

void add_temperatures(Report& report) {
  Json zones = Json::array();
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator("/sys/class/thermal", failure)) {
    if (!entry.path().filename().string().starts_with("thermal_zone")) continue;
    const Json milli = number_or_null(entry.path() / "temp");
    zones.push_back({{"type", line_or_null(entry.path() / "type")},
                     {"celsius", milli.is_null() ? Json(nullptr) : Json(milli.get<double>() / 1000)}});
  }
  if (zones.empty()) report.unknown("temperatures", "no readable thermal zone under /sys/class/thermal");
  report.values["temperatures"] = std::move(zones);
}

}  // namespace duckfleet::duckd::probe
