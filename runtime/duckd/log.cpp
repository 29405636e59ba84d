#include "log.hpp"

#include <time.h>
#include <unistd.h>

#include <array>
#include <cstdio>

namespace duckfleet::duckd {
namespace {

LogLevel minimum = LogLevel::kInfo;

constexpr std::array<std::string_view, 4> kNames = {"debug", "info", "warn", "error"};

std::string timestamp() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  gmtime_r(&now.tv_sec, &parts);
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ", parts.tm_year + 1900, parts.tm_mon + 1,
                parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec, now.tv_nsec / 1000000);
  return text.data();
}

bool needs_quotes(std::string_view value) {
  if (value.empty()) return true;
  for (const char c : value) {
    if (c <= ' ' || c == '"' || c == '=' || c == '\\' || c == 0x7f) return true;
  }
  return false;
}

}  // namespace

void set_log_level(LogLevel level) noexcept { minimum = level; }

bool parse_log_level(std::string_view name, LogLevel& level) noexcept {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) {
      level = static_cast<LogLevel>(i);
      return true;
    }
  }
  return false;
}

LogLine::LogLine(LogLevel level, std::string_view event) : enabled_(level >= minimum) {
  if (!enabled_) return;
  text_ = "ts=" + timestamp() + " level=" + std::string(kNames[static_cast<std::size_t>(level)]);
  with("event", event);
}

LogLine& LogLine::with(std::string_view key, std::string_view value) {
  if (!enabled_) return *this;
  text_ += ' ';
  text_ += key;
  text_ += '=';
  if (!needs_quotes(value)) {
    text_ += value;
    return *this;
  }
  text_ += '"';
  for (const char c : value) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      text_ += '\\';
      text_ += c;
    } else if (code < 0x20 || code == 0x7f) {  // a name that came from outside must not begin a line of its own
      std::array<char, 8> escaped{};
      std::snprintf(escaped.data(), escaped.size(), "\\x%02x", code);
      text_ += escaped.data();
    } else {
      text_ += c;
    }
  }
  text_ += '"';
  return *this;
}

LogLine::~LogLine() {
  if (!enabled_) return;
  text_ += '\n';
  // A full pipe or a closed stderr is no reason to stop serving.
  [[maybe_unused]] const auto written = write(STDERR_FILENO, text_.data(), text_.size());
}

}  // namespace duckfleet::duckd
