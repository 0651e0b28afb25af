// Between Baton and its torch plugin, the shared library that alone is linked with libtorch: what
// the plugin exports. Both are built from one tree with one compiler; a plugin of another build is
// refused by its version.
#ifndef COMMON_ENGINE_TORCH_PLUGIN_INTERFACE_H_
#define COMMON_ENGINE_TORCH_PLUGIN_INTERFACE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/collective/gloo/gloo_transport.h"
#include "common/collective/nccl/connect_nccl.h"
#include "common/engine/executor_options.h"
#include "common/engine/linear.h"
#include "common/engine/stage_model.h"

namespace baton {

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
