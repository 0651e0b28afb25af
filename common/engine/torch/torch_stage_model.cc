#include "common/engine/torch/torch_stage_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_put.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/engine/attention/host_kv_memory.h"
#include "common/engine/requirements.h"
#include "common/engine/stage_model.h"
#include "common/engine/torch/torch_experts.h"
#include "common/engine/torch/torch_operators.h"

namespace baton {
namespace {

constexpr c10::ScalarType kWide = at::kComplexDouble;

// A view of a matrix in memory that the host can read.
at::Tensor View(const TensorView& view) {
  return at::from_blob(view.memory.Host().data(), {view.rows, view.columns},
                       ScalarTypeOf(view.type));
}

}  // namespace

TorchStageModel::TorchStageModel(const StageSetup& setup, const TorchDevice& device,
                                 const ExecutorOptions& options)
    : config_(setup.config),
      shard_(setup.shard),
      sizes_(shard_.sizes),
      kv_(setup.kv),
      dtype_(setup.dtype),
      sliced_(options.slice_activations && !shard_.rank.alone()),
      device_(device),
      embedding_scale_(setup.EmbeddingScale()),
      rotaries_{TorchRotary(config_, /*sliding=*/false, device_),
                TorchRotary(config_, /*sliding=*/true, device_)},
      group_(shard_.rank, options.row_parallel, config_.hidden_size) {}

absl::StatusOr<std::unique_ptr<StageModel>> TorchStageModel::Create(
    const ExecutorOptions& options) {
  BATON_ASSIGN_OR_RETURN(const TorchDevice device, TorchDevice::Open(options.device));
  BATON_ASSIGN_OR_RETURN(StageSetup setup, SetUpStage(options));
  if (options.row_parallel.chunks == 0 && !device.is_host()) {
    return InvalidField("row_parallel_chunks",
                        absl::StrCat("got 0 (auto), which is measured by sums in a host's memory; "
                                     "give a number of chunks on ",
                                     options.device));
  }
  const c10::InferenceMode inference;
  const TorchDevice::Entered entered = device.Enter(Queue::kCompute);
  std::unique_ptr<TorchStageModel> model(new TorchStageModel(setup, device, options));
  BATON_ASSIGN_OR_RETURN(model->weights_,
                         LoadTorchWeights(setup, device.device(), options.on_progress));
  // After the weights, as CpuStageModel does.
  BATON_RETURN_IF_ERROR(
      model->AllocatePages(options.give_back_landings ? Landings::kGivenBack : Landings::kKept));
  model->PrepareKernels(options.cuda_graph_max_rows);
  device.Finish(Queue::kCompute);
  return model;
}

absl::Status TorchStageModel::AllocatePages(Landings landings) {
  BATON_RETURN_IF_ERROR(MakePages(landings));
  // What copies pages copies element by element.
  const bool whole = pages_.size(-1) * pages_.element_size() % c10::elementSize(kWide) == 0;
  wide_pages_ = whole ? pages_.view(kWide) : pages_;
  return absl::OkStatus();
}

absl::Status TorchStageModel::MakePages(Landings landings) {
  const std::vector<int64_t> shape = {kv_.page_count, kv_.layers(),  kv_.planes,
                                      kv_.kv_heads,   kv_.page_size, kv_.head_dim};
  const c10::ScalarType type = ScalarTypeOf(kv_.element_type);
  if (!device_.is_host()) {
    pages_ = at::zeros(shape, at::TensorOptions(type).device(device_.device()));
    device_.Finish(Queue::kCompute);
    BATON_ASSIGN_OR_RETURN(kv_memory_, DeviceKvMemory::Create(kv_, device_, pages_, landings));
    return absl::OkStatus();
  }
  BATON_ASSIGN_OR_RETURN(pool_, KvPool::Create(kv_));
  const std::span<std::byte> bytes = pool_->Bytes();
  kv_memory_ = std::make_unique<HostKvMemory>(kv_, bytes);
  pages_ = at::from_blob(bytes.data(), shape, type);
  return absl::OkStatus();
}

absl::StatusOr<MemoryBuffer> TorchStageModel::AllocateActivations(size_t bytes) {
  if (device_.is_host()) return AllocateHost(bytes);
  return GuardTorch([&]() -> absl::StatusOr<MemoryBuffer> {
    const at::Tensor staging = device_.AllocateStaging(bytes);
    return MemoryBuffer(device_.StagingSpan(staging), [staging](const MemorySpan&) {});
  });
}

absl::Status TorchStageModel::JoinGroup(std::shared_ptr<Communicator> group) {
  if (group_.alone()) return StageModel::JoinGroup(std::move(group));
  return GuardTorch([&] {
    const c10::InferenceMode inference;
    // The measurement uses a projection that steps use too.
    return group_.Join(std::move(group), [this](int rows) {
      at::linear(at::zeros({rows, sizes_.attended_size()}, weights_.layers[0].o.options()),
                 weights_.layers[0].o);
    });
  });
}

absl::Status TorchStageModel::Forward(const Batch& batch, const TensorView& in,
                                      const TensorView& out, std::span<float> logits) {
  BATON_RETURN_IF_ERROR(Validate(batch, in, out, logits.size()));
  absl::Status status = GuardTorch([&] {
    const c10::InferenceMode inference;
    const TorchDevice::Entered entered = device_.Enter(Queue::kCompute);
    absl::Status computed = Compute(batch, in, out, logits);
    // What the step gives, its KV included, must be in place when it ends.
    device_.Finish(Queue::kCompute);
    return computed;
  });
  if (!status.ok()) group_.Fail(status);
  return status;
}

absl::Status TorchStageModel::Compute(const Batch& batch, const TensorView& in,
                                      const TensorView& out, std::span<float> logits) {
  if (graphs_ != nullptr && graphs_->Takes(batch)) return ComputeByGraph(batch, in, out, logits);
  if (!group_.alone()) BATON_RETURN_IF_ERROR(group_.Begin(batch.TokenCount()));
  std::vector<TorchStep> steps = {PlanStep(batch, ShapeOfSteps(/*sliding=*/false), device_)};
  if (!config_.sliding_layers.empty()) {
    steps.push_back(PlanStep(batch, ShapeOfSteps(/*sliding=*/true), device_));
  }
  at::Tensor x;
  if (first_stage()) {
    BATON_ASSIGN_OR_RETURN(x, Sum(Embed(steps[0])));
  } else {
    BATON_ASSIGN_OR_RETURN(x, TakeInput(in));
  }
  BATON_ASSIGN_OR_RETURN(x, Layers(steps, x));
  if (last_stage()) return TellLogits(batch, steps[0], x, logits);
  GiveOutput(x, out);
  return absl::OkStatus();
}

absl::Status TorchStageModel::ComputeByGraph(const Batch& batch, const TensorView& in,
                                             const TensorView& out, std::span<float> logits) {
  at::Tensor x = graphs_->Run(batch, first_stage() ? at::Tensor() : View(in), {});
  if (!last_stage()) {
    GiveOutput(x, out);
    return absl::OkStatus();
  }
  std::vector<int64_t> wanted;
  for (size_t i = 0; i < batch.slices.size(); ++i) {
    if (batch.slices[i].wants_row()) wanted.push_back(static_cast<int64_t>(i));
  }
  if (wanted.size() < batch.slices.size()) {
    x = x.index_select(0, device_.UploadNumbers(wanted));
  }
  TellRows(batch, x, logits);
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> TorchStageModel::Layers(std::span<TorchStep> steps, at::Tensor x) {
  for (size_t i = 0; i < steps.size(); ++i) {
    const at::Tensor turns =
        rotaries_[i].Angles(steps[i].positions, ScalarTypeOf(activation_type()), kernels_.get());
    steps[i].cos = turns.select(0, 0);
    steps[i].sin = turns.select(0, 1);
  }
  const auto output_normed = [this](const at::Tensor& output, const at::Tensor& norm) {
    return norm.defined() ? Norm(output, norm) : output;
  };
  at::Tensor added;  // What the block before adds to x.
  for (int layer = 0; layer < kv_.layers(); ++layer) {
    const TorchLayer& weights = weights_.layers[static_cast<size_t>(layer)];
    const TorchStep& step = steps[config_.slides(kv_.layer_begin + layer) ? 1 : 0];
    DeviceKernels::Normed next = AddNorm(x, added, weights.input_norm);
    BATON_ASSIGN_OR_RETURN(const at::Tensor heads, Attention(step, layer, weights, next.normed));
    BATON_ASSIGN_OR_RETURN(added, Project(heads, weights.o, weights.o_bias));
    added = output_normed(added, weights.attention_output_norm);
    next = AddNorm(next.sum, added, weights.post_attention_norm);
    BATON_ASSIGN_OR_RETURN(added, FeedForward(weights, next.normed));
    added = output_normed(added, weights.feed_forward_output_norm);
    x = next.sum;
  }
  return added.defined() ? x + added : x;
}

absl::StatusOr<at::Tensor> TorchStageModel::TakeInput(const TensorView& in) {
  const at::Tensor part =
      View(in).to(device_.device(), ScalarTypeOf(in.type), /*non_blocking=*/true, /*copy=*/true);
  if (!sliced_) return part;
  const at::Tensor whole = at::empty({in.rows, config_.hidden_size}, part.options());
  BATON_RETURN_IF_ERROR(group_.GatherParts(device_.Lend(part), device_.Lend(whole)));
  return whole;
}

// A slice is a contiguous part of all elements (stage_model.h).
void TorchStageModel::GiveOutput(const at::Tensor& x, const TensorView& out) const {
  if (!sliced_) {
    View(out).copy_(x, /*non_blocking=*/true);
    return;
  }
  const int64_t count = out.rows * out.columns;
  View(out).copy_(
      x.reshape({-1}).narrow(0, shard_.rank.rank * count, count).view({out.rows, out.columns}),
      /*non_blocking=*/true);
}

absl::StatusOr<at::Tensor> TorchStageModel::Sum(const at::Tensor& part) {
  if (group_.alone()) return part;
  // Always a copy of `part`.
  const at::Tensor sum = part.to(at::TensorOptions(at::kFloat).device(device_.device()),
                                 /*non_blocking=*/false, /*copy=*/true)
                             .contiguous();
  BATON_RETURN_IF_ERROR(group_.Sum(device_.Lend(sum)));
  return sum.to(part.scalar_type());
}

absl::StatusOr<at::Tensor> TorchStageModel::Project(const at::Tensor& rows,
                                                    const at::Tensor& weight,
                                                    const at::Tensor& bias) {
  if (group_.alone()) return MultiplyRows(kernels_.get(), rows, weight, bias);
  sums_ = at::empty({rows.size(0), config_.hidden_size},
                    at::TensorOptions(at::kFloat).device(device_.device()));
  const std::span<const IndexRange> chunks = group_.chunks();
  for (size_t i = 0; i < chunks.size(); ++i) {
    const at::Tensor sum = sums_.narrow(0, chunks[i].begin, chunks[i].size());
    sum.copy_(at::linear(rows.narrow(0, chunks[i].begin, chunks[i].size()), weight, bias));
    group_.Reduce(i, device_.Lend(sum));
  }
  for (size_t i = 0; i < chunks.size(); ++i) BATON_RETURN_IF_ERROR(group_.Await(i));
  return sums_.to(rows.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
}

at::Tensor TorchStageModel::Embed(const TorchStep& step) const {
  const at::Tensor rows = EmbeddingRows(step.tokens);
  return embedding_scale_ == 1 ? rows : rows * embedding_scale_;
}

at::Tensor TorchStageModel::EmbeddingRows(const at::Tensor& ids) const {
  if (group_.alone()) return weights_.embedding.index_select(0, ids);
  const at::Tensor others =
      ids.lt(shard_.vocabulary.begin).logical_or(ids.ge(shard_.vocabulary.end));
  const at::Tensor rows = (ids - shard_.vocabulary.begin).masked_fill(others, 0);
  return weights_.embedding.index_select(0, rows).masked_fill_(others.unsqueeze(1), 0);
}

StepShape TorchStageModel::ShapeOfSteps(bool sliding) const {
  return {kv_.page_size,
          kv_.kv_heads,
          kv_.head_dim,
          config_.sliding_layers.empty() || sliding ? config_.sliding_window : 0,
          device_.is_host() ? kTorchGatherElements : kTorchGatherElements * kTorchDeviceGathers,
          kernels_attend_};
}

// ---- Blocks ----

// Computed in float32 and rounded before the weight is applied, as Hugging Face does; after it if
// the weight is float32.
at::Tensor TorchStageModel::Norm(const at::Tensor& x, const at::Tensor& weight) const {
  return Norm(x, weight, config_.rms_norm_eps);
}

DeviceKernels::Normed TorchStageModel::AddNorm(const at::Tensor& x, const at::Tensor& added,
                                               const at::Tensor& weight) const {
  if (kernels_ != nullptr && weight.scalar_type() == x.scalar_type()) {
    return kernels_->AddNorm(x, added, weight, config_.rms_norm_eps);
  }
  const at::Tensor sum = added.defined() ? x + added : x;
  return {sum, Norm(sum, weight)};
}

at::Tensor TorchStageModel::Norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor scale = at::rsqrt(wide.square().mean({-1}, /*keepdim=*/true) + eps);
  if (weight.scalar_type() == at::kFloat) return (wide * scale * weight).to(x.scalar_type());
  return (wide * scale).to(x.scalar_type()) * weight;
}

// The mean over all ranks' parts, which are equally long; heads that ranks share count alike.
absl::Status TorchStageModel::NormWhole(const TorchLayer& weights, at::Tensor& queries,
                                        at::Tensor& keys) {
  const auto mean = [](const at::Tensor& part) {
    return part.to(at::kFloat).square().mean({-1}, /*keepdim=*/true);
  };
  BATON_ASSIGN_OR_RETURN(const at::Tensor sums, Sum(at::cat({mean(queries), mean(keys)}, -1)));
  const at::Tensor factors = at::rsqrt(sums / shard_.rank.size + config_.rms_norm_eps);
  const auto apply = [&](at::Tensor& part, int64_t column, const at::Tensor& weight) {
    part = (part.to(at::kFloat) * factors.narrow(1, column, 1)).to(part.scalar_type()) * weight;
  };
  apply(queries, 0, weights.q_norm);
  apply(keys, 1, weights.k_norm);
  return absl::OkStatus();
}

// Halves of what is turned are paired: (x[i], x[i + dim/2]); the elements behind it stay. `heads`
// is [tokens, heads, head_dim].
at::Tensor TorchStageModel::Rotate(const at::Tensor& heads, const TorchStep& step) {
  const int64_t half = step.cos.size(-1);
  const at::Tensor low = heads.narrow(-1, 0, half);
  const at::Tensor high = heads.narrow(-1, half, half);
  const at::Tensor others = heads.narrow(-1, 2 * half, heads.size(-1) - 2 * half);
  return at::cat({low * step.cos - high * step.sin, high * step.cos + low * step.sin, others}, -1);
}

at::Tensor TorchStageModel::Pages(int layer, int value) const {
  return pages_.select(1, layer).select(1, value);
}

absl::StatusOr<at::Tensor> TorchStageModel::Attention(const TorchStep& step, int layer,
                                                      const TorchLayer& weights,
                                                      const at::Tensor& normed) {
  if (config_.latent.kv_rank > 0) return LatentAttention(step, layer, weights, normed);
  const int64_t tokens = normed.size(0);
  const at::Tensor qkv = MultiplyRows(kernels_.get(), normed, weights.qkv, weights.qkv_bias);
  if (kernels_attend_) return AttentionByKernels(step, layer, weights, qkv);
  const int64_t query_size = sizes_.query_size();
  const int64_t kv_size = sizes_.kv_size();
  at::Tensor query = qkv.narrow(1, 0, query_size);
  at::Tensor key = qkv.narrow(1, query_size, kv_size);
  if (config_.qk_norm_whole) BATON_RETURN_IF_ERROR(NormWhole(weights, query, key));
  const auto heads = [&](const at::Tensor& columns) {
    return columns.view({tokens, columns.size(1) / config_.head_dim, config_.head_dim});
  };
  query = heads(query);
  key = heads(key);
  const at::Tensor value = heads(qkv.narrow(1, query_size + kv_size, kv_size));
  if (config_.qk_norm && !config_.qk_norm_whole) {
    query = Norm(query, weights.q_norm);
    key = Norm(key, weights.k_norm);
  }
  query = Rotate(query, step);
  key = Rotate(key, step);
  // [pages, page_size, kv_heads, head_dim]: a page and a slot select a token.
  Pages(layer, 0).transpose(1, 2).index_put_({step.page, step.slot}, key.to(pages_.scalar_type()));
  Pages(layer, 1).transpose(1, 2).index_put_({step.page, step.slot},
                                             value.to(pages_.scalar_type()));
  return AttendAll(step, layer, query, key, value);
}

at::Tensor TorchStageModel::Sparse(const TorchLayer& weights, const at::Tensor& normed) const {
  const Experts& experts = config_.experts;
  const Routes routes = RouteRows(experts, at::linear(normed, weights.router), weights.router_bias);
  const at::Tensor sum = AddExperts({shard_.experts.begin, experts.count, weights.experts,
                                     weights.stacked, kernels_.get(), config_.activation},
                                    routes, normed);
  if (!weights.shared.has_value()) return sum;
  return sum + MultiplyRows(kernels_.get(),
                            GatedRows(*weights.shared, normed, kernels_.get(), config_.activation),
                            weights.shared->down, {});
}

absl::StatusOr<at::Tensor> TorchStageModel::FeedForward(const TorchLayer& weights,
                                                        const at::Tensor& normed) {
  if (weights.sparse) return Sum(Sparse(weights, normed));
  return Project(GatedRows(weights.mlp, normed, kernels_.get(), config_.activation),
                 weights.mlp.down, weights.mlp.down_bias);
}

}  // namespace baton
