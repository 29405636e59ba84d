// CPU, memory, clock: from /proc and /sys.
#include <fcntl.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>
#include <string>

#include "affinity.hpp"
#include "report.hpp"

namespace duckfleet::duckd::probe {
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

// The firmware's own verdict at power-on (IBM AT technical reference, register 0Eh): the first byte of /dev/nvram. The
// other registers are the kernel's to read; whoever touches the index port beside it may write into the wrong one.
Json cmos_diagnostic(Report& report) {
  const int file = open("/dev/nvram", O_RDONLY | O_CLOEXEC);
  unsigned char status = 0;
  const bool read_it = file >= 0 && read(file, &status, 1) == 1;
  const std::string reason = std::strerror(errno);
  if (file >= 0) close(file);
  if (!read_it) {
    report.unknown("clock.diagnostic_status", "/dev/nvram: " + reason);
    return nullptr;
  }
  return static_cast<unsigned>(status);
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
  cpu["online"] = line_or_null("/sys/devices/system/cpu/online");
  report.took("cpu", "/proc/cpuinfo, /sys/devices/system/cpu");
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
  report.took("memory", "/proc/meminfo");
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
  clock["diagnostic_status"] = cmos_diagnostic(report);
  report.took("clock", "/proc/driver/rtc, /sys/class/rtc/rtc0");
  if (clock["since_epoch_s"].is_null()) report.unknown("clock.rtc", "/sys/class/rtc/rtc0/since_epoch cannot be read");
  report.values["clock"] = std::move(clock);
}

}  // namespace duckfleet::duckd::probe
