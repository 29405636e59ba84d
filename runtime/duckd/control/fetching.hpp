// Connections to other ducks, to fetch chunks from them.
#pragma once

#include <functional>
#include <mutex>
#include <set>
#include <string>

#include "control_frame.hpp"

namespace duckfleet::duckd {

class PeerFetcher {
 public:
  // Asks the duck that the request names for the ticket's chunk and gives each frame of the answer to `take`, until that
  // returns false. Empty: it did; else why no more came. Times out as the request says.
  std::string fetch(const wire::ChunkFetch& request, const std::function<bool(const wire::ControlFrame&)>& take);

  // Ends what is under way, and what is begun later.
  void stop();

 private:
  class Socket;

  std::mutex mutex_;
  std::set<int> sockets_;
  bool stopping_ = false;
};

}  // namespace duckfleet::duckd
