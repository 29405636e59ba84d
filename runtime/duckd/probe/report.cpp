#include "report.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

namespace duckfleet::duckd::probe {

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
