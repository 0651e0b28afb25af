// An endpoint of a worker as its transport sees it: it lives, or it has fallen silent. A silent one
// looks open, and nothing that is sent over it arrives: the half-open endpoints that UCX leaves of
// two processes that have connected and parted a few times. What is sent is called sent, or never
// comes to its end, until the endpoint is closed. The real core of the transport finds it out.
#ifndef TESTS_SIM_SIM_ENDPOINT_H_
#define TESTS_SIM_SIM_ENDPOINT_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "common/transport/endpoint_life.h"
#include "common/types/instance.h"

namespace baton::sim {

enum class Silence {
  kNone,
  kCalledSent,  // The transport says OK at once.
  kNeverEnds,   // It says nothing.
};

struct SimEndpoint {
  InstanceRef peer;
  int64_t opened_us = 0;
  EndpointLife life;
  Silence silence = Silence::kNone;
  // Messages that never end: what reads them, and the callback that waits for the end.
  struct Stuck {
    std::function<void()> read;
    std::function<void(absl::Status)> sent;
  };
  std::vector<Stuck> stuck = {};
};

}  // namespace baton::sim

#endif  // TESTS_SIM_SIM_ENDPOINT_H_
