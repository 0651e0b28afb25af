#include "common/engine/stage_weights.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "common/base/status.h"
#include "common/model/weight_names.h"
#include "common/model/weight_type.h"

namespace baton {
namespace {

// Elements read at a time.
constexpr int64_t kConvertElements = int64_t{1} << 18;

class StageLoader {
 public:
  StageLoader(WeightReader& reader, const ModelConfig& config, const StageToLoad& stage,
              const LinearFactory& make_linear, const std::function<void(double)>& on_progress,
              int64_t elements_total)
      : reader_(reader),
        config_(config),
        stage_(stage),
        make_linear_(make_linear),
        on_progress_(on_progress),
        elements_total_(elements_total) {}

  absl::StatusOr<std::vector<float>> Vector(const WeightSpec& spec) {
    BATON_ASSIGN_OR_RETURN(const StoredTensor tensor, FindWeight(reader_, spec));
    std::vector<float> values(static_cast<size_t>(tensor.ElementCount()));
    BATON_RETURN_IF_ERROR(
        ReadAs(tensor, 0, ElementType::kFloat32, std::as_writable_bytes(std::span(values))));
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
      BATON_ASSIGN_OR_RETURN(tensors.emplace_back(), FindMatrix(spec));
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

  // In the file's type, unless the values are to be rounded: widening a row when it is gathered is
  // exact and costs nothing.
  absl::StatusOr<std::unique_ptr<EmbeddingTable>> Embeddings() {
    BATON_ASSIGN_OR_RETURN(const StoredTensor tensor, FindMatrix(EmbeddingWeight(config_)));
    const bool rounded = stage_.dtype == ElementType::kBFloat16;
    auto table = std::make_unique<EmbeddingTable>(rounded ? DType::kBF16 : tensor.dtype,
                                                  tensor.shape[0], tensor.shape[1]);
    if (!rounded || SameFormat(tensor.dtype, stage_.dtype)) {
      BATON_RETURN_IF_ERROR(tensor.Read(0, table->bytes()));
      return table;
    }
    const size_t element_bytes = ElementBytes(stage_.dtype);
    for (int64_t first = 0; first < tensor.ElementCount(); first += kConvertElements) {
      const int64_t count = std::min(kConvertElements, tensor.ElementCount() - first);
      BATON_RETURN_IF_ERROR(
          ReadAs(tensor, first, stage_.dtype,
                 table->bytes().subspan(static_cast<size_t>(first) * element_bytes,
                                        static_cast<size_t>(count) * element_bytes)));
    }
    return table;
  }

 private:
  absl::StatusOr<StoredTensor> FindMatrix(const WeightSpec& spec) {
    BATON_ASSIGN_OR_RETURN(StoredTensor tensor, FindWeight(reader_, spec));
    if (!stage_.may_round) BATON_RETURN_IF_ERROR(CheckStoredAs(spec, tensor, stage_.dtype));
    return tensor;
  }

  // The elements of `tensor` from `first` on as elements of `type`, as many as fill `out`.
  absl::Status ReadAs(const StoredTensor& tensor, int64_t first, ElementType type,
                      std::span<std::byte> out) {
    const size_t element_bytes = DTypeBytes(tensor.dtype);
    const size_t first_byte = static_cast<size_t>(first) * element_bytes;
    if (SameFormat(tensor.dtype, type)) return tensor.Read(first_byte, out);
    stored_.resize(out.size() / ElementBytes(type) * element_bytes);
    BATON_RETURN_IF_ERROR(tensor.Read(first_byte, stored_));
    ConvertWeights(tensor.dtype, stored_, type, out);
    return absl::OkStatus();
  }

  absl::Status SetRows(const StoredTensor& tensor, int row_begin, Linear& linear) {
    const int64_t inputs = tensor.shape[1];
    const int64_t rows_per_step = std::max<int64_t>(1, kConvertElements / inputs);
    for (int64_t row = 0; row < tensor.shape[0]; row += rows_per_step) {
      const int64_t rows = std::min(rows_per_step, tensor.shape[0] - row);
      BATON_RETURN_IF_ERROR(ReadRows(tensor, row, rows, linear.weights()));
      linear.SetRows(rows_.data(), row_begin + static_cast<int>(row), static_cast<int>(rows));
      Report(rows * inputs);
    }
    return absl::OkStatus();
  }

  // Fills rows_. Rounded first where the values are to be and the matrix keeps float32 even so.
  absl::Status ReadRows(const StoredTensor& tensor, int64_t row, int64_t rows, ElementType kept) {
    const int64_t inputs = tensor.shape[1];
    const auto count = static_cast<size_t>(rows * inputs);
    rows_.resize(count * ElementBytes(kept));
    if (kept == stage_.dtype || stage_.dtype == ElementType::kFloat32) {
      return ReadAs(tensor, row * inputs, kept, rows_);
    }
    rounded_.resize(count * ElementBytes(stage_.dtype));
    BATON_RETURN_IF_ERROR(ReadAs(tensor, row * inputs, stage_.dtype, rounded_));
    ConvertWeights(DType::kBF16, rounded_, kept, rows_);
    return absl::OkStatus();
  }

  void Report(int64_t elements) {
    elements_done_ += elements;
    if (!on_progress_) return;
    on_progress_(static_cast<double>(elements_done_) / static_cast<double>(elements_total_));
  }

  WeightReader& reader_;
  const ModelConfig& config_;
  const StageToLoad& stage_;
  const LinearFactory& make_linear_;
  const std::function<void(double)>& on_progress_;
  const int64_t elements_total_;
  int64_t elements_done_ = 0;
  std::vector<std::byte> stored_;
  std::vector<std::byte> rounded_;
  std::vector<std::byte> rows_;
};

}  // namespace

void StageBlocks::Embed(std::span<const int32_t> tokens, float* out) const {
  if (embedding != nullptr) {
    embedding->Gather(tokens, out);
    return;
  }
  for (const int32_t token : tokens) {
    head->Row(token, out);
    out += head->inputs();
  }
}

absl::StatusOr<StageBlocks> LoadStage(WeightReader& reader, const ModelConfig& config,
                                      const StageToLoad& stage, const LinearFactory& make_linear,
                                      const std::function<void(double)>& on_progress) {
  const bool first = stage.layer_begin == 0;
  const bool last = stage.layer_end == config.num_hidden_layers;
  // Embeddings are read as they are; all else is packed.
  int64_t elements_total = (stage.layer_end - stage.layer_begin) * config.LayerParameters();
  if (last) elements_total += config.hidden_size + int64_t{config.vocab_size} * config.hidden_size;

  StageLoader loader(reader, config, stage, make_linear, on_progress, elements_total);
  StageBlocks blocks;
  // Tied, and the head here: its rows are the embeddings, of which a second copy would be a sixth
  // of a small model.
  if (first && !(last && config.tie_word_embeddings)) {
    BATON_ASSIGN_OR_RETURN(blocks.embedding, loader.Embeddings());
  }
  for (int layer = stage.layer_begin; layer < stage.layer_end; ++layer) {
    BATON_ASSIGN_OR_RETURN(blocks.layers.emplace_back(), loader.Layer(layer));
  }
  if (last) {
    BATON_ASSIGN_OR_RETURN(blocks.final_norm, loader.Vector(FinalNormWeight(config)));
    BATON_ASSIGN_OR_RETURN(blocks.head, loader.Stacked({HeadWeight(config)}));
  }
  return blocks;
}

}  // namespace baton
