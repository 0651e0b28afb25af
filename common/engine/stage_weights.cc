#include "common/engine/stage_weights.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "common/base/status.h"
#include "common/model/weight_names.h"

namespace baton {
namespace {

// Elements converted at a time.
constexpr int64_t kConvertElements = int64_t{1} << 18;

class StageLoader {
 public:
  StageLoader(WeightReader& reader, const ModelConfig& config, const LinearFactory& make_linear,
              const std::function<void(double)>& on_progress, int64_t elements_total)
      : reader_(reader),
        config_(config),
        make_linear_(make_linear),
        on_progress_(on_progress),
        elements_total_(elements_total) {}

  absl::StatusOr<std::vector<float>> Vector(const WeightSpec& spec) {
    BATON_ASSIGN_OR_RETURN(const StoredTensor tensor, FindWeight(reader_, spec));
    std::vector<float> values(static_cast<size_t>(tensor.ElementCount()));
    BATON_RETURN_IF_ERROR(Convert(tensor, 0, values));
    Report(tensor.ElementCount());
    return values;
  }

  absl::StatusOr<std::vector<float>> OptionalVector(const std::optional<WeightSpec>& spec) {
    if (!spec) return std::vector<float>();
    return Vector(*spec);
  }

  // The matrices of `specs`, which have the same inputs, one below the other.
  absl::StatusOr<std::unique_ptr<Linear>> Stacked(const std::vector<WeightSpec>& specs) {
    int64_t outputs = 0;
    for (const WeightSpec& spec : specs) outputs += spec.shape[0];
    const int64_t inputs = specs[0].shape[1];
    // Shapes are checked before anything is allocated by them.
    std::vector<StoredTensor> tensors;
    for (const WeightSpec& spec : specs) {
      BATON_ASSIGN_OR_RETURN(tensors.emplace_back(), FindWeight(reader_, spec));
    }
    auto linear = make_linear_(static_cast<int>(outputs), static_cast<int>(inputs));
    int row_begin = 0;
    for (const StoredTensor& tensor : tensors) {
      BATON_RETURN_IF_ERROR(SetRows(tensor, row_begin, *linear));
      row_begin += static_cast<int>(tensor.shape[0]);
    }
    return linear;
  }

  absl::StatusOr<LayerBlock> Layer(int layer) {
    const LayerWeights weights = LayerWeightsOf(config_, layer);
    LayerBlock block;
    BATON_ASSIGN_OR_RETURN(block.input_norm, Vector(weights.input_norm));
    BATON_ASSIGN_OR_RETURN(block.qkv, Stacked({weights.q, weights.k, weights.v}));
    for (const auto* bias : {&weights.q_bias, &weights.k_bias, &weights.v_bias}) {
      BATON_ASSIGN_OR_RETURN(const std::vector<float> values, OptionalVector(*bias));
      block.qkv_bias.insert(block.qkv_bias.end(), values.begin(), values.end());
    }
    BATON_ASSIGN_OR_RETURN(block.q_norm, OptionalVector(weights.q_norm));
    BATON_ASSIGN_OR_RETURN(block.k_norm, OptionalVector(weights.k_norm));
    BATON_ASSIGN_OR_RETURN(block.o, Stacked({weights.o}));
    BATON_ASSIGN_OR_RETURN(block.post_attention_norm, Vector(weights.post_attention_norm));
    BATON_ASSIGN_OR_RETURN(block.gate_up, Stacked({weights.gate, weights.up}));
    BATON_ASSIGN_OR_RETURN(block.down, Stacked({weights.down}));
    return block;
  }

  absl::StatusOr<std::unique_ptr<EmbeddingTable>> Embeddings() {
    const WeightSpec spec = EmbeddingWeight(config_);
    BATON_ASSIGN_OR_RETURN(const StoredTensor tensor, FindWeight(reader_, spec));
    auto table = std::make_unique<EmbeddingTable>(tensor.dtype, spec.shape[0], spec.shape[1]);
    BATON_RETURN_IF_ERROR(tensor.Read(0, table->bytes()));
    return table;
  }

 private:
  // out.size() elements of `tensor` from element `first` on.
  absl::Status Convert(const StoredTensor& tensor, int64_t first, std::span<float> out) {
    const size_t element_bytes = DTypeBytes(tensor.dtype);
    stored_.resize(out.size() * element_bytes);
    BATON_RETURN_IF_ERROR(tensor.Read(static_cast<size_t>(first) * element_bytes, stored_));
    ConvertToFloat(tensor.dtype, stored_, out);
    return absl::OkStatus();
  }

  absl::Status SetRows(const StoredTensor& tensor, int row_begin, Linear& linear) {
    const int64_t inputs = tensor.shape[1];
    const int64_t rows_per_step = std::max<int64_t>(1, kConvertElements / inputs);
    for (int64_t row = 0; row < tensor.shape[0]; row += rows_per_step) {
      const int64_t rows = std::min(rows_per_step, tensor.shape[0] - row);
      converted_.resize(static_cast<size_t>(rows * inputs));
      BATON_RETURN_IF_ERROR(Convert(tensor, row * inputs, converted_));
      linear.SetRows(converted_.data(), row_begin + static_cast<int>(row), static_cast<int>(rows));
      Report(rows * inputs);
    }
    return absl::OkStatus();
  }

  void Report(int64_t elements) {
    elements_done_ += elements;
    if (!on_progress_) return;
    on_progress_(static_cast<double>(elements_done_) / static_cast<double>(elements_total_));
  }

  WeightReader& reader_;
  const ModelConfig& config_;
  const LinearFactory& make_linear_;
  const std::function<void(double)>& on_progress_;
  const int64_t elements_total_;
  int64_t elements_done_ = 0;
  std::vector<std::byte> stored_;
  std::vector<float> converted_;
};

}  // namespace

absl::StatusOr<StageBlocks> LoadStage(WeightReader& reader, const ModelConfig& config,
                                      int layer_begin, int layer_end,
                                      const LinearFactory& make_linear,
                                      const std::function<void(double)>& on_progress) {
  const bool last = layer_end == config.num_hidden_layers;
  // Embeddings stay as they are; all else is converted.
  int64_t elements_total = (layer_end - layer_begin) * config.LayerParameters();
  if (last) elements_total += config.hidden_size + int64_t{config.vocab_size} * config.hidden_size;

  StageLoader loader(reader, config, make_linear, on_progress, elements_total);
  StageBlocks stage;
  if (layer_begin == 0) {
    BATON_ASSIGN_OR_RETURN(stage.embedding, loader.Embeddings());
  }
  for (int layer = layer_begin; layer < layer_end; ++layer) {
    BATON_ASSIGN_OR_RETURN(stage.layers.emplace_back(), loader.Layer(layer));
  }
  if (last) {
    BATON_ASSIGN_OR_RETURN(stage.final_norm, loader.Vector(FinalNormWeight(config)));
    BATON_ASSIGN_OR_RETURN(stage.head, loader.Stacked({HeadWeight(config)}));
  }
  return stage;
}

}  // namespace baton
