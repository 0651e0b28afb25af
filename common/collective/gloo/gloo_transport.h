// Gloo over c10d as a MessageTransport. Built into the torch plugin alone; this header has no torch
// in it.
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
  // The address of this host that the other ranks reach; Gloo listens on it, at ports that the
  // kernel chooses.
  std::string host = "127.0.0.1";
  // For all ranks to be connected.
  int64_t connect_timeout_ms = 30'000;
};

// Connects this rank to every other. Blocks, at most a second longer than the timeout; ended early
// by the store's End. `store` carries what Gloo has to say to the others meanwhile.
//
// Gloo's connections carry tensors in the clear and authenticate nobody, and what is no Gloo ends
// the process that it reaches: `host` has to be on a network of the cluster's own.
absl::StatusOr<std::unique_ptr<MessageTransport>> ConnectGloo(
    const GlooOptions& options, std::shared_ptr<BootstrapStore> store);

}  // namespace baton

#endif  // COMMON_COLLECTIVE_GLOO_GLOO_TRANSPORT_H_
