// duckd: the resident worker of a duck.
#include <csignal>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "affinity.hpp"
#include "auth.hpp"
#include "chunk_store.hpp"
#include "counters.hpp"
#include "data_plane.hpp"
#include "dispatch.hpp"
#include "fetching.hpp"
#include "handlers.hpp"
#include "keys.hpp"
#include "layout.hpp"
#include "log.hpp"
#include "machine_tuning.hpp"
#include "options.hpp"
#include "placement.hpp"
#include "probe.hpp"
#include "scrub.hpp"
#include "server.hpp"
#include "statistics.hpp"
#include "transport.hpp"
#include "tuning.hpp"
#include "version.hpp"

namespace duckfleet::duckd {
namespace {

int fail(const std::string& message) {
  log_error("cannot_start").with("reason", message);
  return 2;
}

std::string host_name() {
  std::array<char, 65> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

// Blocked in every thread, taken by sigwait() in main.
sigset_t block_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return signals;
}

int serve(const Options& options) {
  const sigset_t signals = block_signals();
  std::string error;
  std::optional<wire::DuckKeys> keys;
  if (options.no_auth) {
    log_warn("no_auth").with("meaning", "anybody who reaches this duck's ports may command it");
  } else {
    keys = read_keys(options.fleet_key_file, options.enrolment_file, error);
    if (!keys) return fail(error);
  }
  const kernels::Selected selected = kernels::select(options.kernels);
  if (selected.kernels == nullptr) return fail(selected.error);

  const auto allowed = allowed_cpus();
  const auto num_allowed = static_cast<unsigned>(allowed.size());
  const unsigned num_cores = options.cpus.empty() ? num_allowed : static_cast<unsigned>(options.cpus.size());
  const unsigned num_threads = options.num_threads != 0 ? options.num_threads : num_cores;
  const ThreadPlan plan = plan_threads(num_threads, options.cpus, num_allowed, options.spin_us);
  if (options.spin_us != 0 && plan.spin_us == 0) {
    log_warn("not_spinning").with("threads", num_threads).with("cores", num_cores);
  }
  for (const int cpu : options.cpus) {
    if (std::ranges::find(allowed, cpu) == allowed.end()) return fail("--cpus: cpu " + std::to_string(cpu) + " is not ours to use");
  }

  Counters counters;
  ChunkStore store(options.store);
  if (!store.open(error)) return fail(error);
  kernels::set_prefetch_bytes(tuned_prefetch(options.store, *selected.kernels, num_threads, plan));
  auto transport = open_transport(options.transport, {options.bind, options.broadcast, options.data_port}, error);
  if (!transport) return fail(error);
  DataPlane data_plane(std::move(transport), *selected.kernels, num_threads, plan, counters.data);
  Placement placement(store, [&](std::shared_ptr<Session> session) { data_plane.install(std::move(session)); });
  placement.resume();
  const Scrub scrub(store, counters.scrub, std::uint64_t{options.scrub_mib_per_s} << 20);

  PeerFetcher fetcher;
  const auto started = std::chrono::steady_clock::now();
  DuckContext duck{.store = store,
                   .placement = placement,
                   .counters = counters,
                   .stats_json =
                       [&] {
                         const std::chrono::duration<double> uptime = std::chrono::steady_clock::now() - started;
                         return statistics_json({counters, store, placement, data_plane.transport(), uptime.count()});
                       },
                   .probe_json = probe_json,
                   .shut_down = [] { kill(getpid(), SIGTERM); },
                   .fetch = [&](const auto& request, const auto& take) { return fetcher.fetch(request, take); },
                   .num_threads = static_cast<std::uint16_t>(num_threads),
                   .num_cpus = static_cast<std::uint16_t>(num_cores),
                   .data_port = options.data_port,
                   .kernels = selected.kernels->name,
                   .version = std::string(kDuckdVersion),
                   .hostname = host_name()};
  randombytes_buf(&duck.instance, sizeof duck.instance);
  ControlServer control(duck, keys, ControlTimeouts{});
  if (!control.start(options.bind, options.control_port, error)) return fail(error);

  log_info("ready")
      .with("bind", options.bind)
      .with("control_port", options.control_port)
      .with("data_port", options.data_port)
      .with("threads", num_threads)
      .with("kernels", selected.kernels->name)
      .with("version", kDuckdVersion);
  std::printf("ready %s control %u data %u\n", options.bind.c_str(), options.control_port, options.data_port);
  std::fflush(stdout);

  int signal = 0;
  sigwait(&signals, &signal);
  log_info("ending").with("signal", signal);
  fetcher.stop();
  control.stop();
  return 0;
}

int run(int argc, char** argv) {
  Options options;
  if (const std::string error = parse_options(argc, argv, options); !error.empty()) {
    std::fprintf(stderr, "duckd: %s\n", error.c_str());
    return 2;
  }
  set_log_level(options.log_level);
  if (!wire::initialise_crypto()) return fail("libsodium does not start");
  switch (options.command) {
    case Command::kLayout:
      std::fputs(wire::layout_text().c_str(), stdout);
      return 0;
    case Command::kProbe:
      std::puts(probe_json({.speed = true, .memory_s = options.probe_seconds, .sustained_s = options.probe_seconds}).c_str());
      return 0;
    case Command::kVersion:
      std::printf("duckd %s protocol %u\n", std::string(kDuckdVersion).c_str(), wire::kVersion);
      return 0;
    case Command::kHelp:
      std::fputs(usage().c_str(), stdout);
      return 0;
    case Command::kServe:
      break;
  }
  return serve(options);
}

}  // namespace
}  // namespace duckfleet::duckd

int main(int argc, char** argv) { return duckfleet::duckd::run(argc, argv); }
