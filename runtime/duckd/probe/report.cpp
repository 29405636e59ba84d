#include "report.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>
#include <vector>

namespace duckfleet::duckd::probe {

namespace {

// `nics.enp1s0.speed`: members of a list by their name where they have one.
std::string child(const std::string& path, const Json& parent, const std::string& key, std::size_t index) {
  if (!parent.is_array()) return path.empty() ? key : path + "." + key;
  for (const char* name : {"name", "locator", "path", "type"}) {
    if (parent[index].is_object() && parent[index].contains(name) && parent[index][name].is_string()) {
      return path + "." + parent[index][name].get<std::string>();
    }
  }
  return path + "." + std::to_string(index);
}

bool is_told(const Json& unknown, const std::string& path) {
  for (const Json& entry : unknown) {
    const auto& what = entry["what"].get_ref<const std::string&>();
    if (path == what || path.starts_with(what + ".")) return true;
  }
  return false;
}

void find_nulls(const Json& value, const std::string& path, std::vector<std::string>& found) {
  if (value.is_null()) found.push_back(path);
  if (!value.is_structured()) return;
  std::size_t index = 0;
  for (const auto& item : value.items()) find_nulls(item.value(), child(path, value, item.key(), index++), found);
}

}  // namespace

void Report::list_nulls() {
  if (!values.contains("unknown")) values["unknown"] = Json::array();
  std::vector<std::string> nulls;
  find_nulls(values, "", nulls);
  for (const std::string& path : nulls) {
    if (!is_told(values["unknown"], path)) unknown(path, "its source is not there, or gives nothing");
  }
}

void Report::took(std::string what, std::string source) {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  const double at_s = static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  values["sources"].push_back({{"what", std::move(what)}, {"source", std::move(source)}, {"at_s", at_s}});
}

std::optional<std::string> read_file(const std::string& path, std::string& reason) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) {
    reason = path + ": " + std::strerror(errno);
    return std::nullopt;
  }
  std::string text;
  std::array<char, 4096> piece;
  ssize_t count = 0;
  while (text.size() < (1u << 20) && (count = read(file, piece.data(), piece.size())) > 0) {
    text.append(piece.data(), static_cast<std::size_t>(count));
  }
  if (count < 0) reason = path + ": " + std::strerror(errno);
  close(file);
  if (count < 0) return std::nullopt;
  return text;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\0";
  while (!text.empty() && kSpace.find(text.back()) != std::string_view::npos) text.remove_suffix(1);
  while (!text.empty() && kSpace.find(text.front()) != std::string_view::npos) text.remove_prefix(1);
  return text;
}

std::optional<std::string> read_line(const std::string& path) {
  std::string reason;
  const auto text = read_file(path, reason);
  if (!text) return std::nullopt;
  return std::string(trimmed(*text));
}

Json line_or_null(const std::string& path) {
  const auto line = read_line(path);
  return line ? Json(*line) : Json(nullptr);
}

Json number_or_null(const std::string& path) {
  const auto line = read_line(path);
  std::int64_t value = 0;
  if (!line) return nullptr;
  const auto [end, error] = std::from_chars(line->data(), line->data() + line->size(), value);
  if (error != std::errc{} || end != line->data() + line->size()) return nullptr;
  return value;
}

}  // namespace duckfleet::duckd::probe
