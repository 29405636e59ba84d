// The JSON under construction, and what could not be read.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace duckfleet::duckd::probe {

using Json = nlohmann::ordered_json;

class Report {
 public:
  Json values = Json::object();

  void unknown(std::string what, std::string reason) {
    values["unknown"].push_back({{"what", std::move(what)}, {"reason", std::move(reason)}});
  }

  // Lists every value that is still null and has no reason yet: nothing is left out in silence.
  void list_nulls();

  // Where a reading came from, and when: by the clock since boot, which nobody sets.
  void took(std::string what, std::string source);
};

// A file of /proc or /sys as it is, at most 1 MiB; nothing, and `reason`, when it cannot be read.
std::optional<std::string> read_file(const std::string& path, std::string& reason);

// The same without the newline at its end; null in JSON when it cannot be read.
std::optional<std::string> read_line(const std::string& path);
Json line_or_null(const std::string& path);
Json number_or_null(const std::string& path);

std::string_view trimmed(std::string_view text);

// What a host asks to be measured, and for how long.
struct Measuring {
  bool speed = false;       // bandwidth and frequency, part of a second
  unsigned memory_s = 0;    // pattern test over free memory; 0: none
  unsigned sustained_s = 0;  // frequency under load past the turbo window, and kernels; 0: only what `speed` takes
};

// Each adds its object to the report.
void add_cpu(Report& report);
void add_memory(Report& report);
void add_board(Report& report);
void add_clock(Report& report);
void add_network(Report& report);
void add_heat(Report& report, const char* key);  // temperatures and throttle counters: "heat", "heat_loaded"
void add_errors(Report& report);                 // error correction, machine checks
void add_power_limits(Report& report);
void add_storage(Report& report);
void add_ssh_host_key(Report& report);
void add_kernel_log(Report& report);
void add_bandwidth(Report& report);
void add_frequency(Report& report, unsigned seconds);  // 0: part of one
void add_kernels(Report& report, unsigned seconds);
void add_pattern_test(Report& report, unsigned seconds);

}  // namespace duckfleet::duckd::probe
