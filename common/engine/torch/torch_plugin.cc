// libbaton_torch.so: the functions that the plugin exports.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linear.h>
#include <torch/version.h>

#include "common/engine/torch/plugin_interface.h"
#include "common/engine/torch/torch_device.h"
#include "common/engine/torch/torch_stage_model.h"

// OpenBLAS's own setting: torch's does not reach its threads, which would take every core. Absent
// if torch multiplies with another library.
extern "C" __attribute__((weak)) void openblas_set_num_threads(int threads);

namespace baton {
namespace {

void SetThreads(int threads) {
  at::set_num_threads(threads);
  if (openblas_set_num_threads != nullptr) openblas_set_num_threads(threads);
}

// A view of memory that torch only reads; torch's interface has no const.
at::Tensor View(const float* data, int64_t rows, int64_t columns) {
  return at::from_blob(const_cast<float*>(data), {rows, columns}, at::kFloat);
}

class TorchLinear final : public Linear {
 public:
  TorchLinear(int outputs, int inputs)
      : Linear(outputs, inputs, ElementType::kFloat32),
        weight_(at::empty({outputs, inputs}, at::kFloat)) {}

  void SetRows(const std::byte* rows, const float* /*scales*/, int row_begin,
               int row_count) override {
    weight_.narrow(0, row_begin, row_count)
        .copy_(View(reinterpret_cast<const float*>(rows), row_count, inputs()));
  }

  void Row(int row, float* out) const override {
    View(out, 1, inputs()).copy_(weight_.narrow(0, row, 1));
  }

  void Apply(const float* x, int rows, float* y) const override {
    View(y, rows, outputs()).copy_(at::linear(View(x, rows, inputs()), weight_));
  }

 private:
  at::Tensor weight_;  // [outputs, inputs] float32.
};

constexpr TorchPlugin kPlugin = {
    kTorchPluginVersion,
    TORCH_VERSION,
    LibtorchHasCuda,
    SetThreads,
    [](int outputs, int inputs) -> std::unique_ptr<Linear> {
      return std::make_unique<TorchLinear>(outputs, inputs);
    },
    ConnectNccl,
    [](const ExecutorOptions& options) {
      return GuardTorch([&] { return TorchStageModel::Create(options); });
    },
};

}  // namespace
}  // namespace baton

extern "C" __attribute__((visibility("default"))) const baton::TorchPlugin* baton_torch_plugin() {
  return &baton::kPlugin;
}
