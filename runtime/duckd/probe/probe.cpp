#include "probe.hpp"

#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <ctime>

#include "report.hpp"
#include "version.hpp"
#include "wire.hpp"

namespace duckfleet::duckd {
namespace {

double now_s(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

void add_system(probe::Report& report) {
  utsname name{};
  uname(&name);
  report.values["hostname"] = name.nodename;
  report.values["kernel"] = {{"release", name.release}, {"version", name.version}, {"machine", name.machine}};
  report.values["uptime_s"] = now_s(CLOCK_BOOTTIME);
  report.values["boot_id"] = probe::line_or_null("/proc/sys/kernel/random/boot_id");
}

}  // namespace

std::string probe_json(const probe::Measuring& measuring) {
  probe::Report report;
  report.values["duckd"] = {{"version", kDuckdVersion}, {"protocol", wire::kVersion}};
  report.values["started_at_s"] = now_s(CLOCK_REALTIME);
  const double started_s = now_s(CLOCK_BOOTTIME);
  add_system(report);
  probe::add_cpu(report);
  probe::add_memory(report);
  probe::add_board(report);
  probe::add_clock(report);
  probe::add_network(report);
  probe::add_heat(report, "heat");
  probe::add_errors(report);
  probe::add_power_limits(report);
  probe::add_ssh_host_key(report);
  probe::add_storage(report);
  if (measuring.speed) {
    probe::add_bandwidth(report);
    probe::add_frequency(report, measuring.sustained_s);
    if (measuring.sustained_s != 0) probe::add_kernels(report, measuring.sustained_s);
    probe::add_heat(report, "heat_loaded");
  }
  if (measuring.memory_s != 0) probe::add_pattern_test(report, measuring.memory_s);
  probe::add_kernel_log(report);  // last: what the load made it say is in it
  report.values["finished_at_s"] = now_s(CLOCK_REALTIME);
  // A clock that was set meanwhile shows here: the clock since boot is nobody's to set.
  report.values["took_s"] = now_s(CLOCK_BOOTTIME) - started_s;
  report.list_nulls();
  // Firmware strings are whatever the vendor wrote: bytes that are no UTF-8 become U+FFFD.
  return report.values.dump(-1, ' ', false, probe::Json::error_handler_t::replace);
}

}  // namespace duckfleet::duckd
