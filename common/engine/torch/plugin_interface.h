// Between Baton and its torch plugin, the shared library that alone is linked with libtorch: what
// the plugin exports. Both are built from one tree with one compiler; a plugin of another build is
// refused by its version.
#ifndef COMMON_ENGINE_TORCH_PLUGIN_INTERFACE_H_
#define COMMON_ENGINE_TORCH_PLUGIN_INTERFACE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/collective/bootstrap_store.h"
#include "common/collective/communicator.h"
#include "common/collective/message_transport.h"
#include "common/engine/executor_options.h"
#include "common/engine/stage_model.h"
#include "common/engine/weights/linear.h"

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

// Raised with every change of this header or of what it names.
inline constexpr int kTorchPluginVersion = 5;

struct TorchPlugin {
  int version;
  const char* libtorch;  // "1.13.0", "2.15.0": what it is built from.
  bool (*has_cuda)();    // Whether that computes on GPUs, be there one or not.
  // Threads that torch's own operators may use, in the whole process.
  void (*set_threads)(int threads);
  // libtorch's matrix product, which is not batch invariant: its library picks kernels by shape.
  std::unique_ptr<Linear> (*make_linear)(int outputs, int inputs);
  // ConnectGloo, for a ThreadedCommunicator.
  absl::StatusOr<std::unique_ptr<MessageTransport>> (*connect_gloo)(
      const GlooOptions& options, std::shared_ptr<BootstrapStore> store);
  absl::StatusOr<std::unique_ptr<Communicator>> (*connect_nccl)(
      const GroupDescription& group, const NcclOptions& options,
      std::shared_ptr<BootstrapStore> store);
  // A whole range of layers on options.device.
  absl::StatusOr<std::unique_ptr<StageModel>> (*make_stage_model)(const ExecutorOptions& options);
};

// The one symbol that the plugin exports.
inline constexpr char kTorchPluginSymbol[] = "baton_torch_plugin";
using TorchPluginFunction = const TorchPlugin* (*)();

}  // namespace baton

#endif  // COMMON_ENGINE_TORCH_PLUGIN_INTERFACE_H_
