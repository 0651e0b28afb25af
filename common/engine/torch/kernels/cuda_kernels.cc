// Compiles kernels.cu for a model and launches it; graphs by libtorch's CUDAGraph.
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nvrtc.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/engine/torch/kernels/device_kernels.h"

namespace baton {
namespace {

constexpr const char* kSource =
#include "common/engine/torch/kernels/kernels.cu.inc"
    ;

constexpr int64_t kEight = 8;      // Columns of one load.
constexpr int64_t kThreads = 256;  // In a block, where rows need no other number.
constexpr int64_t kWarp = 32;
constexpr int64_t kMostShares = 128;
// What attend_pages.cu has: heads of a block, and the columns that its warps have in all.
constexpr int64_t kTileHeads = 8;
constexpr int64_t kWarpColumns = 256;
// Blocks of AttendPages that a multiprocessor runs at once, and how many it gets in all, so that it
// does not wait for one that has a long row.
constexpr int64_t kBlocksAtOnce = 4;
constexpr int64_t kBlocksInAll = 16;
// What products.cu has: rows and warps of MultiplyFew at most, rows of a weight that it takes
// together, columns that are one step of a sum, and how many steps a warp should have.
constexpr int64_t kMostRows = 8;
constexpr int64_t kMostWarps = 8;
constexpr int64_t kStrip = 16;
constexpr int64_t kStep = 32;
constexpr int64_t kSteps = 4;
// Bytes of a weight: cuBLAS takes as long for larger ones alone, and less in a step.
constexpr size_t kMostWeight = size_t{16} << 20;
constexpr int64_t kMostPeers = 8;  // Blocks of a cluster.

// NVRTC opens a library of its own by name, which the loader need not find, beside itself.
void OpenBuiltins() {
  Dl_info where;
  if (dladdr(reinterpret_cast<void*>(&nvrtcVersion), &where) == 0) return;
  int major = 0;
  int minor = 0;
  nvrtcVersion(&major, &minor);
  const std::string path = where.dli_fname;
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  dlopen(absl::StrCat(folder, "libnvrtc-builtins.so.", major, ".", minor).c_str(),
         RTLD_NOW | RTLD_GLOBAL);
}

// The machine code of kernels.cu for a GPU.
std::vector<char> Compile(const std::vector<std::string>& options) {
  OpenBuiltins();
  nvrtcProgram program = nullptr;
  TORCH_CHECK(
      nvrtcCreateProgram(&program, kSource, "kernels.cu", 0, nullptr, nullptr) == NVRTC_SUCCESS,
      "NVRTC can't be used");
  std::vector<const char*> given;
  given.reserve(options.size());
  for (const std::string& option : options) given.push_back(option.c_str());
  const nvrtcResult result =
      nvrtcCompileProgram(program, static_cast<int>(given.size()), given.data());
  if (result != NVRTC_SUCCESS) {
    size_t size = 0;
    nvrtcGetProgramLogSize(program, &size);
    std::string log(size, '\0');
    nvrtcGetProgramLog(program, log.data());
    TORCH_CHECK(false, "NVRTC (", nvrtcGetErrorString(result), ") with ",
                absl::StrJoin(options, " "), ": ", log);
  }
  size_t size = 0;
  nvrtcGetCUBINSize(program, &size);
  std::vector<char> code(size);
  nvrtcGetCUBIN(program, code.data());
  nvrtcDestroyProgram(&program);
  return code;
}

class CudaGraph final : public StepGraph {
 public:
  CudaGraph(const std::function<void()>& work, at::cuda::MempoolId_t pool) {
    graph_.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      try {
        graph_.capture_end();
      } catch (const c10::Error&) {  // It was broken off.
      }
      throw;
    }
    graph_.capture_end();
  }
  void Replay() override { graph_.replay(); }

 private:
  at::cuda::CUDAGraph graph_;
};

class CudaPoint final : public QueuePoint {
 public:
  CudaPoint() {
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
    const cudaError_t recorded = cudaEventRecord(event_, c10::cuda::getCurrentCUDAStream());
    if (recorded != cudaSuccess) cudaEventDestroy(event_);
    C10_CUDA_CHECK(recorded);
  }
  ~CudaPoint() override { cudaEventDestroy(event_); }
  CudaPoint(const CudaPoint&) = delete;
  CudaPoint& operator=(const CudaPoint&) = delete;
  void Await() override { C10_CUDA_CHECK(cudaEventSynchronize(event_)); }

 private:
  cudaEvent_t event_ = nullptr;
};

int64_t Divided(int64_t count, int64_t by) { return (count + by - 1) / by; }

template <typename Pointer = const void*>
Pointer Memory(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  TORCH_CHECK(tensor.is_contiguous(), "a kernel takes a tensor in order");
  return static_cast<Pointer>(tensor.data_ptr());
}

// Blocks of a launch.
struct Grid {
  int64_t x = 1;
  int64_t y = 1;
  int64_t z = 1;
  bool cluster = false;  // Whether those of x are a cluster.
};

class CudaKernels final : public DeviceKernels {
 public:
  CudaKernels(const TorchDevice& device, const KernelShape& shape, const cudaDeviceProp& properties)
      : shape_(shape),
        processors_(properties.multiProcessorCount),
        fits_heads_(FitsHeads(shape)),
        is_hopper_or_later_(properties.major >= 9),
        has_grouped_products_(properties.major == 9 || properties.major == 10),
        pool_(at::cuda::graph_pool_handle()) {
    std::vector<std::string> options = {
        absl::StrCat("-arch=sm_", properties.major, properties.minor), "-std=c++17"};
    if (fits_heads_) {
      options.push_back(absl::StrCat("-DHEAD_DIM=", shape.head_dim));
      options.push_back(absl::StrCat("-DHEADS=", shape.heads));
      options.push_back(absl::StrCat("-DKV_HEADS=", shape.kv_heads));
      options.push_back(absl::StrCat("-DPAGE_SIZE=", shape.page_size));
      options.push_back(absl::StrCat("-DMOST_SHARES=", kMostShares));
    }
    const std::vector<char> code = Compile(options);
    C10_CUDA_CHECK(
        cudaLibraryLoadData(&library_, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    add_norm_ = Find("AddNorm");
    gate_ = Find("Gate");
    angles_ = Find("Angles");
    if (is_hopper_or_later_) multiply_few_ = Find("MultiplyFew");
    if (!fits_heads_) return;
    place_heads_ = Find("PlaceHeads");
    attend_pages_ = Find("AttendPages");
    join_shares_ = Find("JoinShares");
    merge_part_ = Find("MergePart");
    has_cudnn_ = properties.major >= 9 && TryCudnn(device);
  }
  ~CudaKernels() override { cudaLibraryUnload(library_); }
  CudaKernels(const CudaKernels&) = delete;
  CudaKernels& operator=(const CudaKernels&) = delete;

  bool fits_heads() const override { return fits_heads_; }
  bool has_cudnn() const override { return has_cudnn_; }
  bool has_grouped_products() const override { return has_grouped_products_; }

  Normed AddNorm(const at::Tensor& x, const at::Tensor& added, const at::Tensor& weight,
                 double eps) const override {
    const Normed given = {added.defined() ? at::empty_like(x) : x, at::empty_like(x)};
    const int64_t columns = x.size(-1);
    if (x.numel() == 0) return given;
    const auto eights = static_cast<int>(columns / kEight);
    const int64_t threads = std::min(kThreads, Divided(eights, kWarp) * kWarp);
    Launch(add_norm_, {x.numel() / columns}, threads, Memory(x), Memory(added), Memory(weight),
           static_cast<float>(eps), eights, Memory<void*>(given.sum), Memory<void*>(given.normed));
    return given;
  }

  at::Tensor Gate(const at::Tensor& gate_up) const override {
    const int64_t columns = gate_up.size(1) / 2;
    at::Tensor inner = at::empty({gate_up.size(0), columns}, gate_up.options());
    if (inner.numel() == 0) return inner;
    const int64_t count = inner.numel() / kEight;
    Launch(gate_, {Divided(count, kThreads)}, kThreads, Memory(gate_up),
           static_cast<int>(columns / kEight), static_cast<long long>(count), Memory<void*>(inner));
    return inner;
  }

  bool Multiplies(const at::Tensor& rows, const at::Tensor& weight) const override {
    return is_hopper_or_later_ && rows.dim() == 2 && rows.size(0) <= kMostRows &&
           rows.size(0) > 0 && rows.size(1) % kStep == 0 && rows.scalar_type() == at::kBFloat16 &&
           rows.is_contiguous() && weight.is_contiguous() && weight.nbytes() <= kMostWeight;
  }

  at::Tensor Multiply(const at::Tensor& rows, const at::Tensor& weight,
                      const at::Tensor& bias) const override {
    return MultiplyFew(rows, weight, bias, false);
  }

  at::Tensor MultiplyGated(const at::Tensor& rows, const at::Tensor& gate_up) const override {
    return MultiplyFew(rows, gate_up, {}, true);
  }

  at::Tensor Angles(const at::Tensor& positions, const at::Tensor& frequencies,
                    double magnitude) const override {
    const int64_t tokens = positions.size(0);
    const int64_t half = frequencies.numel();
    at::Tensor turns = at::empty({2, tokens, 1, half}, frequencies.options().dtype(at::kBFloat16));
    Launch(angles_, {Divided(tokens * half, kThreads)}, kThreads, Memory(positions),
           Memory(frequencies), static_cast<int>(half), static_cast<long long>(tokens),
           static_cast<float>(magnitude), Memory<void*>(turns));
    return turns;
  }

  Heads PlaceHeads(const at::Tensor& qkv, const Placing& placing) const override {
    const int64_t tokens = qkv.size(0);
    Heads heads = {at::empty({tokens, shape_.heads, shape_.head_dim}, qkv.options()),
                   at::empty({tokens, shape_.kv_heads, shape_.head_dim}, qkv.options())};
    const int64_t warps = tokens * (shape_.heads + 2 * shape_.kv_heads);
    Launch(place_heads_, {Divided(warps * kWarp, kThreads)}, kThreads, Memory(qkv),
           Memory(placing.q_norm), Memory(placing.k_norm), static_cast<float>(placing.eps),
           Memory(placing.cos), Memory(placing.sin), Memory(placing.page), Memory(placing.slot),
           static_cast<long long>(tokens), Memory<void*>(heads.query), Memory<void*>(heads.key),
           placing.key_pages.data_ptr(), placing.value_pages.data_ptr(),
           static_cast<long long>(placing.key_pages.stride(0)));
    return heads;
  }

  at::Tensor AttendPages(const at::Tensor& query, const PagedRows& rows,
                         const at::Tensor& key_pages, const at::Tensor& value_pages, double scale,
                         int64_t window) const override {
    const int64_t count = query.size(0);
    const int64_t group = shape_.heads / shape_.kv_heads;
    const int64_t columns = shape_.kv_heads * Divided(group, kTileHeads);
    const int64_t wanted = count == 1 ? kBlocksAtOnce * processors_ / columns
                                      : Divided(kBlocksInAll * processors_, count * columns);
    const int64_t shares = std::clamp<int64_t>(wanted, 1, kMostShares);
    const auto wide = query.options().dtype(at::kFloat);
    const at::Tensor partial = at::empty({count, shape_.heads, shares, shape_.head_dim}, wide);
    const at::Tensor sums = at::empty({count, shape_.heads, shares, 2}, wide);
    at::Tensor output = at::empty_like(query);
    const int64_t warps = std::max<int64_t>(1, kWarpColumns / shape_.head_dim);
    Launch(attend_pages_, {shares, columns, count}, warps * kWarp, Memory(query),
           static_cast<const void*>(key_pages.data_ptr()),
           static_cast<const void*>(value_pages.data_ptr()),
           static_cast<long long>(key_pages.stride(0)), Memory(rows.starts), Memory(rows.ids),
           Memory(rows.lengths), static_cast<float>(scale), static_cast<int>(window),
           Memory<void*>(partial), Memory<void*>(sums));
    Launch(join_shares_, {count * shape_.heads}, shape_.head_dim, Memory(partial), Memory(sums),
           static_cast<int>(shares), Memory<void*>(output));
    return output;
  }

  void Merge(const Part& part, Part& sum) const override {
    if (sum.output.scalar_type() != at::kFloat) sum.output = sum.output.to(at::kFloat);
    const int64_t rows = part.output.size(0);
    const at::Tensor after = at::empty_like(sum.log_sum);
    const int64_t count = part.output.numel() / kEight;
    Launch(merge_part_, {Divided(count, kThreads)}, kThreads, Memory(part.output),
           Memory(part.log_sum), static_cast<long long>(rows), Memory(sum.log_sum),
           Memory<void*>(sum.output), Memory<void*>(after));
    sum.log_sum = after;
  }

  std::unique_ptr<StepGraph> Capture(const std::function<void()>& work) override {
    const absl::Cleanup captured = [this] { capturing_ = false; };
    capturing_ = true;
    return std::make_unique<CudaGraph>(work, pool_);
  }
  std::unique_ptr<QueuePoint> Mark() const override { return std::make_unique<CudaPoint>(); }

 private:
  static bool FitsHeads(const KernelShape& shape) {
    return shape.head_dim % 64 == 0 && shape.head_dim <= 256 && shape.page_size % 16 == 0 &&
           shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0;
  }

  // Each multiprocessor should have a block.
  at::Tensor MultiplyFew(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& bias,
                         bool gated) const {
    const int64_t columns = weight.size(0);
    const int64_t given = gated ? columns / 2 : columns;
    const int64_t strips = Divided(given, gated ? kStrip : 2 * kStrip);
    int64_t peers = 1;
    while (peers < kMostPeers && strips * peers < processors_ &&
           rows.size(1) / kStep > kSteps * kMostWarps * peers) {
      peers *= 2;
    }
    at::Tensor output = at::empty({rows.size(0), given}, rows.options());
    Launch(multiply_few_, {peers, strips, 1, true}, kMostWarps * kWarp, Memory(rows),
           static_cast<int>(rows.size(0)), Memory(weight), Memory(bias), static_cast<int>(columns),
           static_cast<int>(rows.size(1) / kEight), static_cast<int>(gated), Memory<void*>(output));
    return output;
  }

  // The first use also finds out what cuDNN needs a second for.
  bool TryCudnn(const TorchDevice& device) const {
    constexpr int64_t kTokens = 256;
    if (shape_.head_dim > 128) return false;
    const auto heads = [&](int64_t count) {
      return at::zeros({1, count, kTokens, shape_.head_dim},
                       at::TensorOptions(at::kBFloat16).device(device.device()));
    };
    try {
      const at::Tensor keys = heads(shape_.kv_heads);
      at::_scaled_dot_product_cudnn_attention(heads(shape_.heads), keys, keys, std::nullopt,
                                              /*compute_log_sumexp=*/true, /*dropout_p=*/0.0,
                                              /*is_causal=*/true, /*return_debug_mask=*/false, 1.0);
    } catch (const c10::Error&) {
      return false;
    }
    return true;
  }

  cudaKernel_t Find(const char* name) const {
    cudaKernel_t kernel = nullptr;
    C10_CUDA_CHECK(cudaLibraryGetKernel(&kernel, library_, name));
    return kernel;
  }

  // In a graph, from compute capability 9.0 on, a kernel may start before the one in front has
  // ended: it waits by itself (kernels.cu). Elsewhere the host's time for a launch counts.
  template <typename... Arguments>
  void Launch(cudaKernel_t kernel, const Grid& grid, int64_t threads,
              Arguments... arguments) const {
    std::array<void*, sizeof...(Arguments)> pointers = {static_cast<void*>(&arguments)...};
    std::array<cudaLaunchAttribute, 3> attributes = {};
    cudaLaunchConfig_t config = {};
    const auto add = [&](cudaLaunchAttributeID id) -> cudaLaunchAttributeValue& {
      attributes[config.numAttrs].id = id;
      return attributes[config.numAttrs++].val;
    };
    if (grid.cluster) {
      add(cudaLaunchAttributeClusterDimension).clusterDim = {static_cast<unsigned>(grid.x), 1, 1};
    }
    if (capturing_ && is_hopper_or_later_) {
      add(cudaLaunchAttributeProgrammaticStreamSerialization)
          .programmaticStreamSerializationAllowed = 1;
      // All alike: a multiprocessor that has to divide its memory anew runs nothing meanwhile, and
      // one that does not runs fewer blocks.
      add(cudaLaunchAttributePreferredSharedMemoryCarveout).sharedMemCarveout =
          cudaSharedmemCarveoutMaxShared;
    }
    config.gridDim = {static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                      static_cast<unsigned>(grid.z)};
    config.blockDim = {static_cast<unsigned>(threads), 1, 1};
    config.stream = c10::cuda::getCurrentCUDAStream();
    config.attrs = attributes.data();
    C10_CUDA_CHECK(
        cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), pointers.data()));
  }

  const KernelShape shape_;
  const int64_t processors_;
  const bool fits_heads_;
  const bool is_hopper_or_later_;
  const bool has_grouped_products_;
  const at::cuda::MempoolId_t pool_;  // All graphs share it: one runs at a time.
  bool capturing_ = false;
  bool has_cudnn_ = false;
  cudaLibrary_t library_ = nullptr;
  cudaKernel_t add_norm_ = nullptr;
  cudaKernel_t gate_ = nullptr;
  cudaKernel_t angles_ = nullptr;
  cudaKernel_t multiply_few_ = nullptr;
  cudaKernel_t place_heads_ = nullptr;
  cudaKernel_t attend_pages_ = nullptr;
  cudaKernel_t join_shares_ = nullptr;
  cudaKernel_t merge_part_ = nullptr;
};

}  // namespace

std::unique_ptr<DeviceKernels> CreateDeviceKernels(const TorchDevice& device,
                                                   const KernelShape& shape) {
  if (device.is_host()) return nullptr;
  const c10::cuda::CUDAGuard guard(device.device());
  cudaDeviceProp properties;
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device.device().index()));
  if (properties.major < 8) return nullptr;
  return std::make_unique<CudaKernels>(device, shape, properties);
}

}  // namespace baton
