#include "keys.hpp"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "digest.hpp"

namespace duckfleet::duckd {
namespace {

bool read_key(const std::string& path, bool secret, std::array<std::uint8_t, 32>& key, std::string& error) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    error = path + ": " + std::strerror(errno);
    return false;
  }
  if (secret && (info.st_mode & 077) != 0) {
    error = path + " can be read by others; run: chmod 600 " + path;
    return false;
  }
  std::ifstream file(path);
  std::string line, more;
  std::getline(file, line);
  const auto parsed = digest_from_hex(line);
  if (!parsed || (file >> more)) {
    error = path + " is not one line of 64 hexadecimal digits";
    return false;
  }
  key = *parsed;
  return true;
}

}  // namespace

std::optional<wire::DuckKeys> read_keys(const std::string& fleet_key_file, const std::string& enrolment_file,
                                        std::string& error) {
  wire::DuckKeys keys;
  if (!read_key(fleet_key_file, false, keys.fleet_public, error)) return std::nullopt;
  if (!read_key(enrolment_file, true, keys.enrolment, error)) return std::nullopt;
  return keys;
}

}  // namespace duckfleet::duckd
