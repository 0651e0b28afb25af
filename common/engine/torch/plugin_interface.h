// The interface between Baton and its torch plugin, the only shared library that is linked with
// libtorch. Both are built from one tree with one compiler; a plugin with another version of the
// interface is refused. This header includes nothing of torch.
#ifndef COMMON_ENGINE_TORCH_PLUGIN_INTERFACE_H_
#define COMMON_ENGINE_TORCH_PLUGIN_INTERFACE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/collective/bootstrap_store.h"
#include "common/collective/communicator.h"
#include "common/engine/stage_model.h"
#include "common/engine/weights/linear.h"

namespace baton {

struct NcclOptions {
  std::string device = "cuda";  // This rank's, as --device says it.
  // For all ranks to be connected.
  int64_t connect_timeout_ms = 30'000;
  CommunicatorOptions communicator;
};

// Connects this rank to every other over NCCL. Blocks no longer than the timeout; the store's End
// ends it early. `store` carries rank 0's address to the others; NCCL uses the network interface
// that NCCL_SOCKET_IFNAME names. UNIMPLEMENTED in a build without CUDA, FAILED_PRECONDITION if this
// host has no such device; both say what was asked for and what is there.
//
// NCCL's connections carry tensors in the clear and without authentication: they belong on a
// network of the cluster's own.
absl::StatusOr<std::unique_ptr<Communicator>> ConnectNccl(const GroupDescription& group,
                                                          const NcclOptions& options,
                                                          std::shared_ptr<BootstrapStore> store);

// Raise it with every change of the types and functions in this header, or of the types that they
// use.
inline constexpr int kTorchPluginVersion = 10;

struct TorchPlugin {
  int version;
  const char* libtorch;  // The version that it is built from: "1.13.0".
  bool (*has_cuda)();    // Whether that libtorch supports GPUs, even if there is none.
  // Threads that torch's own operators may use, in the whole process.
  void (*set_threads)(int threads);
  // libtorch's matrix product. Not batch invariant: libtorch picks kernels by shape.
  std::unique_ptr<Linear> (*make_linear)(int outputs, int inputs);
  absl::StatusOr<std::unique_ptr<Communicator>> (*connect_nccl)(
      const GroupDescription& group, const NcclOptions& options,
      std::shared_ptr<BootstrapStore> store);
  // A range of layers on options.device.
  absl::StatusOr<std::unique_ptr<StageModel>> (*make_stage_model)(const ExecutorOptions& options);
};

// The one symbol that the plugin exports.
inline constexpr char kTorchPluginSymbol[] = "baton_torch_plugin";
using TorchPluginFunction = const TorchPlugin* (*)();

}  // namespace baton

#endif  // COMMON_ENGINE_TORCH_PLUGIN_INTERFACE_H_
