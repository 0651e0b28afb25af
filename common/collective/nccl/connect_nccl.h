// NCCL between the GPUs of a group's ranks. A part of the torch plugin that is built with
// --config=cuda alone; any other build has a function that says so.
#ifndef COMMON_COLLECTIVE_NCCL_CONNECT_NCCL_H_
#define COMMON_COLLECTIVE_NCCL_CONNECT_NCCL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/collective/bootstrap_store.h"
#include "common/collective/communicator.h"

namespace baton {

struct NcclOptions {
  std::string device = "cuda";  // This rank's, as --device says it.
  // For all ranks to be connected.
  int64_t connect_timeout_ms = 30'000;
  CommunicatorOptions communicator;
};

// Connects this rank to every other. Blocks, no longer than the timeout; ended early by the store's
// End. `store` carries rank 0's address to the others; NCCL takes the network interface that
// NCCL_SOCKET_IFNAME names. UNIMPLEMENTED in a build without CUDA, FAILED_PRECONDITION where this
// host has no such device; both say what was asked for and what is there.
//
// NCCL's connections carry tensors in the clear and authenticate nobody: they belong on a network
// of the cluster's own.
absl::StatusOr<std::unique_ptr<Communicator>> ConnectNccl(const GroupDescription& group,
                                                          const NcclOptions& options,
                                                          std::shared_ptr<BootstrapStore> store);

}  // namespace baton

#endif  // COMMON_COLLECTIVE_NCCL_CONNECT_NCCL_H_
