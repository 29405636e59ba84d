// Errors that the hardware counted: memory controllers with error correction, machine checks.
#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "report.hpp"

namespace duckfleet::duckd::probe {
namespace fs = std::filesystem;
namespace {

constexpr const char* kControllers = "/sys/devices/system/edac/mc";

// An empty list: no controller, so no error correction. That is not "no errors".
void add_controllers(Report& report) {
  std::vector<fs::path> controllers;
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(kControllers, failure)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("mc") && name.size() > 2 && name[2] >= '0' && name[2] <= '9') controllers.push_back(entry.path());
  }
  if (failure && failure != std::errc::no_such_file_or_directory) {
    report.values["memory"]["controllers"] = nullptr;
    report.unknown("memory.controllers", std::string(kControllers) + ": " + failure.message());
    return;
  }
  std::ranges::sort(controllers);
  Json list = Json::array();
  for (const fs::path& path : controllers) {
    list.push_back({{"name", path.filename().string()},
                    {"corrected", number_or_null(path / "ce_count")},
                    {"uncorrected", number_or_null(path / "ue_count")},
                    {"since_reset_s", number_or_null(path / "seconds_since_reset")}});
  }
  report.took("memory.controllers", kControllers);
  report.values["memory"]["controllers"] = std::move(list);
}

// The sum over the cpus of a line like " MCE:   0   0   Machine check exceptions".
Json interrupts(const std::string& text, std::string_view name) {
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    if (!trimmed(line).starts_with(name)) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    std::uint64_t sum = 0, value = 0;
    bool any = false;
    while (words >> value) {
      sum += value;
      any = true;
    }
    return any ? Json(sum) : Json(nullptr);
  }
  return nullptr;
}

void add_machine_checks(Report& report) {
  std::string reason;
  const auto text = read_file("/proc/interrupts", reason);
  Json checks = {{"exceptions", nullptr}, {"polls", nullptr}};
  if (text) {
    checks["exceptions"] = interrupts(*text, "MCE:");
    checks["polls"] = interrupts(*text, "MCP:");
    reason = "/proc/interrupts has no line of machine checks";
  }
  if (checks["exceptions"].is_null()) {
    report.unknown("machine_checks", reason);
  } else {
    report.took("machine_checks", "/proc/interrupts");
  }
  report.values["machine_checks"] = std::move(checks);
}

}  // namespace

void add_errors(Report& report) {
  add_controllers(report);
  add_machine_checks(report);
}

}  // namespace duckfleet::duckd::probe
