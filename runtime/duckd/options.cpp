#include "options.hpp"

#include <charconv>
#include <map>
#include <string_view>

namespace duckfleet::duckd {
namespace {

template <typename T>
bool parse_number(std::string_view text, T minimum, T maximum, T& value) {
  T parsed{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  if (error != std::errc{} || end != text.data() + text.size() || parsed < minimum || parsed > maximum) return false;
  value = parsed;
  return true;
}

// "0-3,6": cpus in the order in which threads are pinned to them.
bool parse_cpus(std::string_view text, std::vector<int>& cpus) {
  cpus.clear();
  while (!text.empty()) {
    const auto comma = text.find(',');
    const auto item = text.substr(0, comma);
    const auto dash = item.find('-');
    int first = 0, last = 0;
    if (!parse_number(item.substr(0, dash), 0, 4095, first)) return false;
    last = first;
    if (dash != std::string_view::npos && !parse_number(item.substr(dash + 1), first, 4095, last)) return false;
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    if (comma == std::string_view::npos) return true;
    text.remove_prefix(comma + 1);
  }
  return false;
}

struct Setter {
  std::string_view wants;
  bool (*apply)(std::string_view, Options&);
};

const std::map<std::string_view, Setter>& setters() {
  static const std::map<std::string_view, Setter> table = {
      {"--bind", {"an IPv4 address", [](std::string_view v, Options& o) { return o.bind = v, !v.empty(); }}},
      {"--broadcast",
       {"an IPv4 address or none",
        [](std::string_view v, Options& o) { return o.broadcast = v == "none" ? "" : v, !v.empty(); }}},
      {"--control-port",
       {"a port",
        [](std::string_view v, Options& o) { return parse_number<std::uint16_t>(v, 1, 65535, o.control_port); }}},
      {"--data-port",
       {"a port", [](std::string_view v, Options& o) { return parse_number<std::uint16_t>(v, 1, 65535, o.data_port); }}},
      {"--threads",
       {"a number from 1 to 256",
        [](std::string_view v, Options& o) { return parse_number<std::uint32_t>(v, 1, 256, o.num_threads); }}},
      {"--cpus", {"a list like 0-3,6", [](std::string_view v, Options& o) { return parse_cpus(v, o.cpus); }}},
      {"--spin-us",
       {"microseconds, at most 10000000",
        [](std::string_view v, Options& o) { return parse_number<std::uint32_t>(v, 0, 10000000, o.spin_us); }}},
      {"--kernels", {"an implementation", [](std::string_view v, Options& o) { return o.kernels = v, !v.empty(); }}},
      {"--transport", {"a transport", [](std::string_view v, Options& o) { return o.transport = v, !v.empty(); }}},
      {"--store", {"a directory", [](std::string_view v, Options& o) { return o.store = v, !v.empty(); }}},
      {"--scrub-mib-per-s",
       {"MiB a second, 0 for none",
        [](std::string_view v, Options& o) { return parse_number<std::uint32_t>(v, 0, 100000, o.scrub_mib_per_s); }}},
      {"--fleet-key", {"a file", [](std::string_view v, Options& o) { return o.fleet_key_file = v, !v.empty(); }}},
      {"--enrolment", {"a file", [](std::string_view v, Options& o) { return o.enrolment_file = v, !v.empty(); }}},
      {"--seconds",
       {"of --probe: of the memory test and of the load, at most 900",
        [](std::string_view v, Options& o) { return parse_number<unsigned>(v, 0, 900, o.probe_seconds); }}},
      {"--log-level",
       {"debug, info, warn or error", [](std::string_view v, Options& o) { return parse_log_level(v, o.log_level); }}},
  };
  return table;
}

const std::map<std::string_view, Command>& commands() {
  static const std::map<std::string_view, Command> table = {{"--layout", Command::kLayout},
                                                            {"--probe", Command::kProbe},
                                                            {"--version", Command::kVersion},
                                                            {"--help", Command::kHelp}};
  return table;
}

}  // namespace

std::string parse_options(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    std::string_view name = argv[i];
    std::string_view value;
    const auto equals = name.find('=');
    if (equals != std::string_view::npos) {
      value = name.substr(equals + 1);
      name = name.substr(0, equals);
    }
    if (const auto command = commands().find(name); command != commands().end()) {
      options.command = command->second;
      continue;
    }
    if (name == "--no-auth") {
      options.no_auth = true;
      continue;
    }
    const auto setter = setters().find(name);
    if (setter == setters().end()) return "unknown option " + std::string(name) + "; see duckd --help";
    if (equals == std::string_view::npos) {
      if (++i == argc) return std::string(name) + " wants " + std::string(setter->second.wants);
      value = argv[i];
    }
    if (!setter->second.apply(value, options)) {
      return std::string(name) + " wants " + std::string(setter->second.wants) + ", not '" + std::string(value) + "'";
    }
  }
  if (options.command != Command::kServe) return {};
  const bool has_keys = !options.fleet_key_file.empty() && !options.enrolment_file.empty();
  if (options.no_auth && (!options.fleet_key_file.empty() || !options.enrolment_file.empty())) {
    return "--no-auth and key files exclude each other";
  }
  if (!options.no_auth && !has_keys) return "give --fleet-key FILE and --enrolment FILE, or --no-auth";
  return {};
}

std::string usage() {
  std::string text =
      "duckd: holds weights, computes its slice of each FFN\n\n"
      "  duckd --bind ADDR --fleet-key FILE --enrolment FILE [options]   serve until SIGTERM\n"
      "  duckd --probe [--seconds N]   what this box is, as JSON; with a memory test and a load of so long\n"
      "  duckd --layout     the wire layout: struct, field, offset, size\n"
      "  duckd --version\n\nOptions:\n";
  for (const auto& [name, setter] : setters()) {
    text += "  " + std::string(name) + std::string(20 - name.size(), ' ') + std::string(setter.wants) + "\n";
  }
  text += "  --no-auth           anybody who reaches the ports may command this duck; for labs\n";
  return text;
}

}  // namespace duckfleet::duckd
