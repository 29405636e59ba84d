// The command line of duckd.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "log.hpp"

namespace duckfleet::duckd {

enum class Command : std::uint8_t { kServe, kLayout, kProbe, kVersion, kHelp };

struct Options {
  Command command = Command::kServe;
  std::string bind = "0.0.0.0";
  std::string broadcast;  // empty: none
  std::uint16_t control_port = 9821;
  std::uint16_t data_port = 9822;
  std::uint32_t num_threads = 0;  // 0: as many as there are cpus for us
  std::vector<int> cpus;          // empty: threads are not pinned
  std::uint32_t spin_us = 2000;
  std::string kernels;  // empty: the best
  std::string transport = "udp";
  std::uint32_t scrub_mib_per_s = 32;  // 0: not at all
  std::string store;  // empty: chunks live and die with the process
  std::string fleet_key_file;
  std::string enrolment_file;
  bool no_auth = false;
  unsigned probe_seconds = 0;  // of the memory test and of the sustained load of --probe; 0: neither
  LogLevel log_level = LogLevel::kInfo;
};

// Fills `options`; a text for the person who typed it when that cannot be done.
std::string parse_options(int argc, char** argv, Options& options);

std::string usage();

}  // namespace duckfleet::duckd
