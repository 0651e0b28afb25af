// Messages between the ranks of a group over Gloo's TCP, for a ThreadedCommunicator.
//
// Gloo's connections carry tensors in the clear and without authentication, and data that is not
// Gloo's ends the process that receives it: they belong on a network of the cluster's own.
#ifndef COMMON_COLLECTIVE_GLOO_GLOO_TRANSPORT_H_
#define COMMON_COLLECTIVE_GLOO_GLOO_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/collective/bootstrap_store.h"
#include "common/collective/message_transport.h"

namespace baton {

struct GlooOptions {
  int rank = 0;
  int size = 1;
  // The address of this host that the other ranks reach. Gloo listens there, at ports that the
  // kernel chooses.
  std::string host = "127.0.0.1";
  // For all ranks to be connected.
  int64_t connect_timeout_ms = 30'000;
};

// Connects this rank to every other. Blocks for at most a second longer than the timeout; the
// store's End ends it early. `store` carries Gloo's addresses to the other ranks meanwhile.
// UNAVAILABLE or DEADLINE_EXCEEDED says what failed.
absl::StatusOr<std::unique_ptr<MessageTransport>> ConnectGloo(
    const GlooOptions& options, const std::shared_ptr<BootstrapStore>& store);

}  // namespace baton

#endif  // COMMON_COLLECTIVE_GLOO_GLOO_TRANSPORT_H_
