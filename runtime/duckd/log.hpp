// Structured lines on stderr: `ts=… level=… event=… key=value …`, one write a line.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace duckfleet::duckd {

// debug: not for us. info: what happened. warn: for us, but unusable. error: an operator must act.
enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarn, kError };

// Lines below `level` are not written. Set once, before threads start.
void set_log_level(LogLevel level) noexcept;
bool parse_log_level(std::string_view name, LogLevel& level) noexcept;

// Built up by `with`, written by its destructor.
class LogLine {
 public:
  LogLine(LogLevel level, std::string_view event);
  ~LogLine();
  LogLine(const LogLine&) = delete;
  LogLine& operator=(const LogLine&) = delete;

  LogLine& with(std::string_view key, std::string_view value);
  LogLine& with(std::string_view key, const char* value) { return with(key, std::string_view(value)); }
  LogLine& with(std::string_view key, std::integral auto value) { return with(key, std::string_view(std::to_string(value))); }

 private:
  bool enabled_;
  std::string text_;
};

inline LogLine log_debug(std::string_view event) { return {LogLevel::kDebug, event}; }
inline LogLine log_info(std::string_view event) { return {LogLevel::kInfo, event}; }
inline LogLine log_warn(std::string_view event) { return {LogLevel::kWarn, event}; }
inline LogLine log_error(std::string_view event) { return {LogLevel::kError, event}; }

}  // namespace duckfleet::duckd
