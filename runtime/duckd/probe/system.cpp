// Room on the file systems, and what the kernel said lately.
#include <sys/klog.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "report.hpp"

namespace duckfleet::duckd::probe {
namespace {

constexpr int kReadAll = 3;  // SYSLOG_ACTION_READ_ALL, syslog(2)
constexpr std::size_t kMaxLogBytes = 1u << 20;
constexpr std::size_t kKeptLogBytes = 96u << 10;  // its end; the whole report must fit one frame

// Type and key of an OpenSSH public key file, without its comment.
std::string key_of(std::string_view line) {
  const auto space = line.find(' ');
  return std::string(line.substr(0, space == std::string_view::npos ? space : line.find(' ', space + 1)));
}

}  // namespace

// The host pins it: this daemon speaks under the fleet's keys, an ssh server does not.
void add_ssh_host_key(Report& report) {
  report.values["ssh_host_key"] = nullptr;
  for (const char* path : {"/run/duckfleet/ssh_host_key.pub", "/etc/ssh/ssh_host_ed25519_key.pub"}) {
    if (const auto line = read_line(path); line && !line->empty()) {
      report.took("ssh_host_key", path);
      report.values["ssh_host_key"] = key_of(*line);
      return;
    }
  }
}

void add_storage(Report& report) {
  Json list = Json::array();
  for (const char* mount : {"/", "/tmp", "/var/lib/duckfleet"}) {
    struct statvfs fs {};
    if (statvfs(mount, &fs) != 0) {
      report.unknown(std::string("storage.") + mount, std::strerror(errno));
      continue;
    }
    list.push_back({{"path", mount},
                    {"file_system", fs.f_fsid},
                    {"read_only", (fs.f_flag & ST_RDONLY) != 0},
                    {"total_bytes", std::uint64_t{fs.f_blocks} * fs.f_frsize},
                    {"available_bytes", std::uint64_t{fs.f_bavail} * fs.f_frsize},
                    {"total_inodes", std::uint64_t{fs.f_files}},
                    {"available_inodes", std::uint64_t{fs.f_favail}}});
  }
  report.took("storage", "statvfs");
  report.values["storage"] = std::move(list);
}

void add_kernel_log(Report& report) {
  std::string text(kMaxLogBytes, '\0');
  const int count = klogctl(kReadAll, text.data(), static_cast<int>(text.size()));
  if (count < 0) {
    report.values["kernel_log"] = nullptr;
    report.unknown("kernel_log", std::string("syslog: ") + std::strerror(errno));
    return;
  }
  text.resize(static_cast<std::size_t>(count));
  if (text.size() > kKeptLogBytes) {
    const auto line = text.find('\n', text.size() - kKeptLogBytes);
    text.erase(0, line == std::string::npos ? text.size() - kKeptLogBytes : line + 1);
  }
  report.took("kernel_log", "syslog");
  report.values["kernel_log"] = std::move(text);
}

}  // namespace duckfleet::duckd::probe
