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
};

// A file of /proc or /sys as it is, at most 1 MiB; nothing, and `reason`, when it cannot be read.
std::optional<std::string> read_file(const std::string& path, std::string& reason);

// The same without the newline at its end; null in JSON when it cannot be read.
std::optional<std::string> read_line(const std::string& path);
Json line_or_null(const std::string& path);
Json number_or_null(const std::string& path);

std::string_view trimmed(std::string_view text);

// Each adds its object to the report.
void add_cpu(Report& report);
void add_memory(Report& report);
void add_board(Report& report);
void add_clock(Report& report);
void add_network(Report& report);
void add_temperatures(Report& report);
void add_read_bandwidth(Report& report);

}  // namespace duckfleet::duckd::probe
