#include "common/engine/native/cpu_stage_model.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/engine/native/native_linear.h"
#include "common/engine/requirements.h"
#include "common/engine/stage_model.h"
#include "common/engine/torch/torch_backend.h"

namespace baton {
namespace {

absl::StatusOr<LinearFactory> ChooseLinear(const ExecutorOptions& options, ElementType dtype,
                                           const kernels::Bf16Products* products,
                                           const kernels::KernelTable& kernels,
                                           ThreadPool& threads) {
  if (products != nullptr) {
    return LinearFactory([products, &kernels, &threads](int outputs, int inputs) {
      return MakePairedLinear(outputs, inputs, *products, kernels, threads);
    });
  }
  if (options.linear != LinearBackend::kTorch) {
    return LinearFactory([dtype, &kernels, &threads](int outputs, int inputs) {
      return MakeNativeLinear(outputs, inputs, dtype, kernels, threads);
    });
  }
  BATON_ASSIGN_OR_RETURN(const TorchPlugin* torch, LoadTorchPlugin());
  torch->set_threads(options.threads);
  return LinearFactory(torch->make_linear);
}

}  // namespace

CpuStageModel::CpuStageModel(const StageSetup& setup, const kernels::KernelTable& kernels,
                             const ExecutorOptions& options)
    : config_(setup.config),
      shard_(setup.shard),
      sizes_(shard_.sizes),
      dtype_(setup.dtype),
      sliced_(options.slice_activations && !shard_.rank.alone()),
      kernels_(kernels),
      threads_(options.threads),
      turns_{Turns(config_, /*sliding=*/false), Turns(config_, /*sliding=*/true)},
      attention_scale_(config_.attention_scale()),
      feed_forward_(kernels_, sizes_, shard_.experts),
      latent_attention_(kernels_, sizes_, threads_),
      group_(shard_.rank, options.row_parallel, config_.hidden_size),
      heads_(kernels_, sizes_, group_) {}

void CpuStageModel::AllocateScratch() {
  const auto rows = [](int64_t columns) { return std::vector<float>(Floats(kRowBlock, columns)); };
  scratch_.normed = rows(config_.hidden_size);
  scratch_.attended = rows(sizes_.attended_size());
  if (group_.alone()) {
    scratch_.projected = rows(config_.hidden_size);
  } else if (last_stage()) {
    scratch_.vocabulary.resize(Floats(kLogitRows, sizes_.vocab_size));
  }
  if (config_.latent.kv_rank > 0) return latent_attention_.Allocate();
  scratch_.qkv = rows(int64_t{sizes_.query_size()} + 2 * int64_t{sizes_.kv_size()});
  max_tiles_ = static_cast<size_t>(
      (int64_t{config_.max_position_embeddings} + kernels::kKeyTile - 1) / kernels::kKeyTile);
  const size_t tiles = static_cast<size_t>(sizes_.num_key_value_heads) * max_tiles_;
  const auto allocate = [tiles](auto& lists) {
    lists.keys.resize(tiles);
    lists.values.resize(tiles);
  };
  if (kv().element_type == ElementType::kBFloat16) {
    allocate(scratch_.bf16_tiles);
  } else {
    allocate(scratch_.tiles);
  }
}

absl::StatusOr<std::unique_ptr<StageModel>> CpuStageModel::Create(const ExecutorOptions& options) {
  BATON_ASSIGN_OR_RETURN(StageSetup setup, SetUpStage(options));
  BATON_RETURN_IF_ERROR(Annotate(CheckModelRuns(setup.config), options.model_path));
  const kernels::KernelTable* found = kernels::FindKernels(options.kernels);
  if (found == nullptr) {
    return InvalidField("kernels",
                        absl::StrCat("this CPU runs no kernels \"", options.kernels, "\""));
  }
  const kernels::Bf16Products* const products = ProductsOf(options, setup.dtype);
  kernels::KernelTable table = *found;
  if (products != nullptr) table.attention_bf16 = products->attention;
  std::unique_ptr<CpuStageModel> model(new CpuStageModel(setup, table, options));
  const kernels::KernelTable* const kernels = &model->kernels_;
  BATON_ASSIGN_OR_RETURN(const LinearFactory make_linear,
                         ChooseLinear(options, setup.dtype, products, *kernels, model->threads_));
  ScaledLinearFactory make_scaled;
  if (options.linear != LinearBackend::kTorch) {
    make_scaled = [kernels, products, &threads = model->threads_](int outputs, int inputs,
                                                                  int offset) {
      // Ranks may cut a block of scales anywhere, and products are of pairs.
      if (products != nullptr && offset % 2 == 0) {
        return MakePairedScaledLinear(outputs, inputs, offset, *products, *kernels, threads);
      }
      return MakeNativeScaledLinear(outputs, inputs, offset, *kernels, threads);
    };
  }
  const auto make_heads = [kernels](int heads, int outputs, int inputs, ElementType type) {
    return MakeNativeHeadLinear(heads, outputs, inputs, type, *kernels);
  };
  BATON_ASSIGN_OR_RETURN(
      model->stage_, LoadStage(setup, make_linear, make_scaled, make_heads, options.on_progress));
  // After the weights: only now are the sizes in config.json checked against real tensors.
  BATON_ASSIGN_OR_RETURN(model->pool_, KvPool::Create(setup.kv));
  model->kv_memory_ = std::make_unique<HostKvMemory>(setup.kv, model->pool_->Bytes());
  model->AllocateScratch();
  return model;
}

absl::Status CpuStageModel::JoinGroup(std::shared_ptr<Communicator> group) {
  if (group_.alone()) return StageModel::JoinGroup(std::move(group));
  // The measurement uses a projection that steps use too.
  const Linear& projection = *stage_.layers[0].o;
  std::vector<float> projected(Floats(kRowBlock, projection.outputs()));
  return group_.Join(std::move(group), [&](int rows) {
    for (int begin = 0; begin < rows; begin += kRowBlock) {
      projection.Apply(scratch_.attended.data(), std::min(kRowBlock, rows - begin),
                       projected.data());
    }
  });
}

absl::Status CpuStageModel::Forward(const Batch& batch, const TensorView& in, const TensorView& out,
                                    std::span<float> logits) {
  BATON_RETURN_IF_ERROR(Validate(batch, in, out, logits.size()));
  absl::Status status = GuardLibraries([&] { return Compute(batch, in, out, logits); });
  if (!status.ok()) group_.Fail(status);
  return status;
}

float* CpuStageModel::ResidualStream(const TensorView& out) {
  if (!last_stage() && !sliced_ && dtype_ == ElementType::kFloat32) return Floats(out).data();
  hidden_.resize(Floats(static_cast<int64_t>(places_.size()), config_.hidden_size));
  return hidden_.data();
}

absl::Status CpuStageModel::TakeInput(const TensorView& in, float* x) {
  TensorView whole = in;
  if (sliced_) {
    whole_.resize(in.bytes() * static_cast<size_t>(shard_.rank.size));
    whole = {HostSpan(whole_), in.type, in.rows, config_.hidden_size};
    BATON_RETURN_IF_ERROR(group_.GatherParts(in, whole));
  }
  if (whole.type == ElementType::kBFloat16) {
    kernels_.from_bf16(reinterpret_cast<const kernels::Bf16*>(whole.memory.Host().data()),
                       Floats(whole.rows, whole.columns), x);
  } else if (const std::span<const float> floats = Floats(whole); floats.data() != x) {
    std::memmove(x, floats.data(), floats.size_bytes());
  }
  return absl::OkStatus();
}

void CpuStageModel::GiveOutput(const float* x, const TensorView& out) const {
  const size_t count = Floats(out.rows, out.columns);
  if (sliced_) x += static_cast<size_t>(shard_.rank.rank) * count;
  if (dtype_ == ElementType::kBFloat16) {
    kernels_.to_bf16(x, count, reinterpret_cast<kernels::Bf16*>(out.memory.Host().data()));
  } else if (const std::span<float> floats = Floats(out); floats.data() != x) {
    std::copy_n(x, count, floats.data());
  }
}

absl::Status CpuStageModel::Compute(const Batch& batch, const TensorView& in, const TensorView& out,
                                    std::span<float> logits) {
  PlaceRows(batch);
  const int tokens = static_cast<int>(places_.size());
  if (!group_.alone()) BATON_RETURN_IF_ERROR(group_.Begin(tokens));
  float* const x = ResidualStream(out);
  if (first_stage()) {
    BATON_RETURN_IF_ERROR(Embed(batch, x));
  } else {
    BATON_RETURN_IF_ERROR(TakeInput(in, x));
  }
  for (int layer = kv().layer_begin; layer < kv().layer_end; ++layer) {
    if (group_.alone()) {
      BATON_RETURN_IF_ERROR(RunLayer(batch, layer, tokens, x));
    } else {
      BATON_RETURN_IF_ERROR(RunPartOfLayer(batch, layer, x));
    }
  }
  for (size_t chunk = 0; chunk < group_.chunks().size(); ++chunk) {
    BATON_RETURN_IF_ERROR(FinishSums(chunk, kv().layer_end - 1, /*ends_layer=*/true, x));
  }
  if (last_stage()) {
    BATON_RETURN_IF_ERROR(AllLogits(batch, x));
    BATON_RETURN_IF_ERROR(LastLogits(batch, x, logits));
  } else {
    GiveOutput(x, out);
  }
  return absl::OkStatus();
}

void CpuStageModel::PlaceRows(const Batch& batch) {
  places_.clear();
  for (size_t i = 0; i < batch.slices.size(); ++i) {
    const SequenceSlice& slice = batch.slices[i];
    for (int token = 0; token < slice.token_count; ++token) {
      places_.push_back({static_cast<int>(i), slice.prefix_length + token});
    }
  }
  for (Turns& turns : std::span(turns_).first(config_.sliding_rope_theta > 0 ? 2 : 1)) {
    const auto half = static_cast<size_t>(turns.rotary.half_dim());
    turns.cos.resize(places_.size() * half);
    turns.sin.resize(places_.size() * half);
    for (size_t row = 0; row < places_.size(); ++row) {
      turns.rotary.Angles(places_[row].position, &turns.cos[row * half], &turns.sin[row * half]);
    }
  }
}

absl::Status CpuStageModel::Embed(const Batch& batch, float* x) {
  float* row = x;
  for (const SequenceSlice& slice : batch.slices) {
    stage_.Embed(slice.tokens, row);
    row += Floats(slice.token_count, config_.hidden_size);
  }
  return group_.alone() ? absl::OkStatus() : group_.Sum({x, row});
}

absl::Status CpuStageModel::RunLayer(const Batch& batch, int layer, int tokens, float* x) {
  const int together = std::min(FeedForward::RowsOf(BlockOf(layer)), tokens);
  std::vector<float>& projected = scratch_.projected;
  projected.resize(std::max(projected.size(), Floats(together, config_.hidden_size)));
  const LayerBlock& weights = BlockOf(layer);
  // In order: a block attends to the keys that earlier blocks have stored.
  for (int begin = 0; begin < tokens; begin += together) {
    const int end = std::min(begin + together, tokens);
    for (int block = begin; block < end; block += kRowBlock) {
      const int block_end = std::min(block + kRowBlock, end);
      BATON_RETURN_IF_ERROR(Attention(batch, layer, block, block_end, x, projected.data()));
      AddOutput(weights.attention_output_norm, {block, block_end}, projected.data(), x);
    }
    Mlp(layer, begin, end, x, projected.data());
    AddOutput(weights.feed_forward_output_norm, {begin, end}, projected.data(), x);
    if (dtype_ == ElementType::kBFloat16) {
      kernels_.round_to_bf16(x + Floats(begin, config_.hidden_size),
                             Floats(end - begin, config_.hidden_size));
    }
  }
  return absl::OkStatus();
}

void CpuStageModel::AddOutput(const std::vector<float>& norm, IndexRange rows, float* output,
                              float* x) const {
  if (!norm.empty()) {
    kernels_.rms_norm(output, norm.data(), static_cast<float>(config_.rms_norm_eps), rows.size(),
                      config_.hidden_size, output);
  }
  kernels_.add(output, Floats(rows.size(), config_.hidden_size),
               x + Floats(rows.begin, config_.hidden_size));
}

absl::Status CpuStageModel::RunPartOfLayer(const Batch& batch, int layer, float* x) {
  const auto blocks = [](IndexRange rows, int size, const auto& run) {
    for (int begin = rows.begin; begin < rows.end; begin += size) {
      BATON_RETURN_IF_ERROR(run(begin, std::min(begin + size, rows.end)));
    }
    return absl::OkStatus();
  };
  const int together = FeedForward::RowsOf(BlockOf(layer));
  const std::span<const IndexRange> chunks = group_.chunks();
  for (size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    if (layer > kv().layer_begin) {
      BATON_RETURN_IF_ERROR(FinishSums(chunk, layer - 1, /*ends_layer=*/true, x));
    }
    BATON_RETURN_IF_ERROR(blocks(chunks[chunk], kRowBlock, [&](int begin, int end) {
      return Attention(batch, layer, begin, end, x, group_.Rows(begin));
    }));
    group_.Reduce(chunk);
  }
  for (size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    BATON_RETURN_IF_ERROR(FinishSums(chunk, layer, /*ends_layer=*/false, x));
    BATON_RETURN_IF_ERROR(blocks(chunks[chunk], together, [&](int begin, int end) {
      Mlp(layer, begin, end, x, group_.Rows(begin));
      return absl::OkStatus();
    }));
    group_.Reduce(chunk);
  }
  return absl::OkStatus();
}

absl::Status CpuStageModel::FinishSums(size_t chunk, int layer, bool ends_layer, float* x) {
  BATON_RETURN_IF_ERROR(group_.Await(chunk));
  const IndexRange rows = group_.chunks()[chunk];
  const LayerBlock& block = BlockOf(layer);
  AddOutput(ends_layer ? block.feed_forward_output_norm : block.attention_output_norm, rows,
            group_.Rows(rows.begin), x);
  if (ends_layer && dtype_ == ElementType::kBFloat16) {
    kernels_.round_to_bf16(x + Floats(rows.begin, config_.hidden_size),
                           Floats(rows.size(), config_.hidden_size));
  }
  return absl::OkStatus();
}

absl::Status CpuStageModel::ApplyHead(int rows, std::span<float> logits) {
  kernels_.rms_norm(scratch_.normed.data(), stage_.final_norm.data(),
                    static_cast<float>(config_.rms_norm_eps), rows, config_.hidden_size,
                    scratch_.normed.data());
  float* const part = group_.alone() ? logits.data() : scratch_.vocabulary.data();
  stage_.head->Apply(scratch_.normed.data(), rows, part);
  if (config_.logit_softcap > 0) {
    kernels_.soft_cap(static_cast<float>(config_.logit_softcap), Floats(rows, sizes_.vocab_size),
                      part);
  }
  if (group_.alone()) return absl::OkStatus();
  return group_.Gather(std::span(scratch_.vocabulary).first(Floats(rows, sizes_.vocab_size)), rows,
                       logits);
}

absl::Status CpuStageModel::LastLogits(const Batch& batch, const float* x,
                                       std::span<float> logits) {
  const auto hidden = static_cast<size_t>(config_.hidden_size);
  const int rows_max = group_.alone() ? kRowBlock : kLogitRows;
  int rows = 0;
  const auto flush = [&] {
    if (rows == 0) return absl::OkStatus();
    const size_t count = tells_logits() ? Floats(rows, config_.vocab_size) : 0;
    absl::Status status = ApplyHead(rows, logits.first(count));
    logits = logits.subspan(count);
    rows = 0;
    return status;
  };
  for (const SequenceSlice& slice : batch.slices) {
    x += Floats(slice.token_count, config_.hidden_size);
    if (!slice.wants_logits) continue;
    std::copy_n(x - hidden, hidden, &scratch_.normed[static_cast<size_t>(rows) * hidden]);
    if (++rows == rows_max) BATON_RETURN_IF_ERROR(flush());
  }
  return flush();
}

absl::Status CpuStageModel::AllLogits(const Batch& batch, const float* x) {
  for (const SequenceSlice& slice : batch.slices) {
    for (int first = 0; slice.on_logits != nullptr && first < slice.token_count;
         first += kLogitRows) {
      const int rows = std::min(kLogitRows, slice.token_count - first);
      if (tells_logits()) some_logits_.resize(Floats(kLogitRows, config_.vocab_size));
      const size_t count = tells_logits() ? Floats(rows, config_.vocab_size) : 0;
      const std::span<float> logits = std::span(some_logits_).first(count);
      std::copy_n(x + Floats(first, config_.hidden_size), Floats(rows, config_.hidden_size),
                  scratch_.normed.data());
      BATON_RETURN_IF_ERROR(ApplyHead(rows, logits));
      if (tells_logits()) slice.on_logits(first, logits);
    }
    x += Floats(slice.token_count, config_.hidden_size);
  }
  return absl::OkStatus();
}

}  // namespace baton
