#include "common/engine/stage_weights.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "common/base/status.h"
#include "common/model/safetensors.h"
#include "common/model/weight_names.h"

namespace baton {
namespace {

// Elements read at a time.
constexpr int64_t kConvertElements = int64_t{1} << 18;

class StageLoader {
 public:
  StageLoader(StageSetup& stage, const LinearFactory& make_linear,
              const std::function<void(double)>& on_progress, int64_t elements_total)
      : stage_(stage),
        make_linear_(make_linear),
        on_progress_(on_progress),
        elements_total_(elements_total) {}

  absl::StatusOr<std::vector<float>> Vectors(const std::vector<std::optional<WeightSpec>>& specs) {
    std::vector<float> values;
    for (const std::optional<WeightSpec>& spec : specs) {
      if (!spec.has_value()) continue;
      BATON_ASSIGN_OR_RETURN(const StoredTensor tensor, FindWeight(stage_.weights, *spec));
      const size_t begin = values.size();
      values.resize(begin + static_cast<size_t>(tensor.ElementCount()));
      BATON_RETURN_IF_ERROR(ReadAs(tensor, 0, ElementType::kFloat32,
                                   std::as_writable_bytes(std::span(values).subspan(begin))));
      Report(tensor.ElementCount());
    }
    return values;
  }

  absl::StatusOr<std::unique_ptr<Linear>> Matrices(const std::vector<WeightSpec>& specs) {
    int64_t outputs = 0;
    for (const WeightSpec& spec : specs) outputs += spec.shape[0];
    const int64_t inputs = specs[0].shape[1];
    // Shapes are checked before anything is allocated by them.
    std::vector<StoredTensor> tensors;
    for (const WeightSpec& spec : specs) {
      BATON_ASSIGN_OR_RETURN(tensors.emplace_back(), stage_.FindMatrix(spec));
    }
    auto linear = make_linear_(static_cast<int>(outputs), static_cast<int>(inputs));
    int row_begin = 0;
    for (const StoredTensor& tensor : tensors) {
      BATON_RETURN_IF_ERROR(SetRows(tensor, row_begin, *linear));
      row_begin += static_cast<int>(tensor.shape[0]);
    }
    return linear;
  }

  // In the file's type, unless the values are to be rounded: widening a row when it is gathered is
  // exact and costs nothing.
  absl::StatusOr<std::unique_ptr<EmbeddingTable>> Embeddings() {
    BATON_ASSIGN_OR_RETURN(const StoredTensor tensor,
                           stage_.FindMatrix(EmbeddingWeight(stage_.config)));
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

  StageSetup& stage_;
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

absl::StatusOr<StageBlocks> LoadStage(StageSetup& stage, const LinearFactory& make_linear,
                                      const std::function<void(double)>& on_progress) {
  const ModelConfig& config = stage.config;
  const bool first = stage.first_stage();
  const bool last = stage.last_stage();
  // Embeddings are read as they are; all else is packed.
  int64_t elements_total = stage.kv.layers() * config.LayerParameters();
  if (last) elements_total += config.hidden_size + int64_t{config.vocab_size} * config.hidden_size;

  StageLoader loader(stage, make_linear, on_progress, elements_total);
  StageBlocks blocks;
  // Tied, and the head here: its rows are the embeddings, of which a second copy would be a sixth
  // of a small model.
  if (first && !(last && config.tie_word_embeddings)) {
    BATON_ASSIGN_OR_RETURN(blocks.embedding, loader.Embeddings());
  }
  for (int layer = stage.kv.layer_begin; layer < stage.kv.layer_end; ++layer) {
    BATON_ASSIGN_OR_RETURN(blocks.layers.emplace_back(),
                           LoadDecoderLayer<LayerBlock>(LayerWeightsOf(config, layer), loader));
  }
  if (last) {
    BATON_ASSIGN_OR_RETURN(blocks.final_norm, loader.Vectors({FinalNormWeight(config)}));
    BATON_ASSIGN_OR_RETURN(blocks.head, loader.Matrices({HeadWeight(config)}));
  }
  return blocks;
}

}  // namespace baton
