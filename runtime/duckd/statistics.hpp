// The counters as JSON: the answer to kStats. docs/wire.md lists the names.
#pragma once

#include <string>

#include "chunk_store.hpp"
#include "counters.hpp"
#include "placement.hpp"
#include "transport.hpp"

namespace duckfleet::duckd {

struct StatisticsSource {
  const Counters& counters;
  const ChunkStore& store;
  const Placement& placement;
  const Transport& transport;
  double uptime_s;
};

std::string statistics_json(const StatisticsSource& source);

}  // namespace duckfleet::duckd
