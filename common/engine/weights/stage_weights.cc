#include "common/engine/weights/stage_weights.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/engine/kernels/kernels.h"
#include "common/engine/weights/block_scales.h"
#include "common/model/safetensors.h"
#include "common/model/weight_names.h"
#include "common/model/weight_part.h"

namespace baton {
namespace {

// Elements read at a time.
constexpr int64_t kConvertElements = int64_t{1} << 18;

// `to` becomes [columns, rows] of the first `rows` of `from`, [.., columns].
template <typename Element>
void Transpose(const std::vector<std::byte>& from, int rows, int columns,
               std::vector<std::byte>& to) {
  const auto height = static_cast<size_t>(rows);
  const auto width = static_cast<size_t>(columns);
  to.resize(height * width * sizeof(Element));
  const auto* const source = reinterpret_cast<const Element*>(from.data());
  auto* const target = reinterpret_cast<Element*>(to.data());
  for (size_t row = 0; row < height; ++row) {
    for (size_t column = 0; column < width; ++column) {
      target[column * height + row] = source[row * width + column];
    }
  }
}

class StageLoader {
 public:
  StageLoader(StageSetup& stage, const LinearFactory& make_linear,
              const ScaledLinearFactory& make_scaled, const HeadLinearFactory& make_heads,
              const std::function<void(double)>& on_progress, int64_t elements_total)
      : stage_(stage),
        make_linear_(make_linear),
        make_scaled_(make_scaled),
        make_heads_(make_heads),
        on_progress_(on_progress),
        elements_total_(elements_total) {}

  absl::StatusOr<std::vector<float>> Vectors(const std::vector<std::optional<WeightSpec>>& specs) {
    std::vector<float> values;
    for (const std::optional<WeightSpec>& spec : specs) {
      if (!spec.has_value()) continue;
      BATON_ASSIGN_OR_RETURN(const StoredPart part, stage_.FindVector(*spec));
      const size_t begin = values.size();
      values.resize(begin + static_cast<size_t>(part.ElementCount()));
      BATON_RETURN_IF_ERROR(ReadAs(part, 0, ElementType::kFloat32,
                                   std::as_writable_bytes(std::span(values).subspan(begin))));
      if (spec->adds_one) {
        for (float& value : std::span(values).subspan(begin)) value += 1;
      }
      Report(part.ElementCount());
    }
    return values;
  }

  absl::StatusOr<std::vector<float>> RouterBias(const std::optional<WeightSpec>& spec) {
    return Vectors({spec});
  }

  absl::StatusOr<std::unique_ptr<Linear>> Matrices(const std::vector<WeightSpec>& specs) {
    // Shapes are checked before anything is allocated by them.
    std::vector<StoredPart> parts;
    int64_t outputs = 0;
    for (const WeightSpec& spec : specs) {
      BATON_ASSIGN_OR_RETURN(StoredPart part, stage_.FindMatrix(spec));
      outputs += part.rows();
      parts.push_back(std::move(part));
    }
    BATON_ASSIGN_OR_RETURN(const bool scaled, AllScaled(specs, parts));
    if (scaled) return ScaledMatrices(specs, parts, static_cast<int>(outputs));
    auto linear = make_linear_(static_cast<int>(outputs), static_cast<int>(parts[0].columns()));
    int row_begin = 0;
    for (const StoredPart& part : parts) {
      BATON_RETURN_IF_ERROR(SetRows(part, row_begin, *linear));
      row_begin += static_cast<int>(part.rows());
    }
    return linear;
  }

  // A head's rows are those of its keys, then those of its values.
  absl::StatusOr<HeadBlock> ByHead(const WeightSpec& spec) {
    const LatentAttention& latent = stage_.config.latent;
    BATON_ASSIGN_OR_RETURN(const StoredPart part, stage_.FindMatrix(spec));
    std::optional<ScaledPart> scaled;
    if (part.dtype() == DType::kF8E4M3) {
      BATON_ASSIGN_OR_RETURN(scaled, ScaledPart::Find(stage_.weights, spec, part));
    }
    const ElementType type = scaled.has_value() ? ElementType::kFloat32 : stage_.dtype;
    const int64_t of_head = latent.nope_dim + latent.value_dim;
    const auto heads = static_cast<int>(part.rows() / of_head);
    HeadBlock block{make_heads_(heads, latent.kv_rank, latent.nope_dim, type),
                    make_heads_(heads, latent.value_dim, latent.kv_rank, type)};
    std::vector<std::byte> keys;
    for (int head = 0; head < heads; ++head) {
      if (scaled.has_value()) {
        rows_.resize(static_cast<size_t>(of_head * part.columns()) * sizeof(float));
        BATON_RETURN_IF_ERROR(scaled->ReadValues(
            head * of_head, of_head,
            {reinterpret_cast<float*>(rows_.data()), rows_.size() / sizeof(float)}));
      } else {
        BATON_RETURN_IF_ERROR(ReadRows(part, head * of_head, of_head, type));
      }
      const auto transpose =
          type == ElementType::kFloat32 ? Transpose<float> : Transpose<kernels::Bf16>;
      transpose(rows_, latent.nope_dim, latent.kv_rank, keys);
      block.keys->SetHead(head, keys.data());
      block.values->SetHead(head, rows_.data() + keys.size());
      Report(of_head * part.columns());
    }
    return block;
  }

  // Kept in the file's type, unless the values are to be rounded: widening a row when it is
  // gathered is exact and cheap.
  absl::StatusOr<std::unique_ptr<EmbeddingTable>> Embeddings() {
    const WeightSpec spec = VocabularyPart(EmbeddingWeight(stage_.config), stage_.shard);
    BATON_ASSIGN_OR_RETURN(const StoredPart part, stage_.FindMatrix(spec));
    const bool rounded = stage_.dtype == ElementType::kBFloat16;
    auto table = std::make_unique<EmbeddingTable>(rounded ? DType::kBF16 : part.dtype(),
                                                  part.rows(), part.columns());
    if (!rounded || SameFormat(part.dtype(), stage_.dtype)) {
      BATON_RETURN_IF_ERROR(part.Read(0, table->bytes()));
      return table;
    }
    const size_t element_bytes = ElementBytes(stage_.dtype);
    for (int64_t first = 0; first < part.ElementCount(); first += kConvertElements) {
      const int64_t count = std::min(kConvertElements, part.ElementCount() - first);
      BATON_RETURN_IF_ERROR(
          ReadAs(part, first, stage_.dtype,
                 table->bytes().subspan(static_cast<size_t>(first) * element_bytes,
                                        static_cast<size_t>(count) * element_bytes)));
    }
    return table;
  }

 private:
  // Reads elements of `part` from `first` on, as elements of `type`, as many as fill `out`.
  absl::Status ReadAs(const StoredPart& part, int64_t first, ElementType type,
                      std::span<std::byte> out) {
    if (SameFormat(part.dtype(), type)) return part.Read(first, out);
    stored_.resize(out.size() / ElementBytes(type) * DTypeBytes(part.dtype()));
    BATON_RETURN_IF_ERROR(part.Read(first, stored_));
    ConvertWeights(part.dtype(), stored_, type, out);
    return absl::OkStatus();
  }

  // Whether the matrices, which will be one, are FP8.
  static absl::StatusOr<bool> AllScaled(const std::vector<WeightSpec>& specs,
                                        const std::vector<StoredPart>& parts) {
    const bool scaled = parts[0].dtype() == DType::kF8E4M3;
    for (size_t i = 1; i < parts.size(); ++i) {
      if ((parts[i].dtype() == DType::kF8E4M3) == scaled) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", specs[i].name, " is stored as ", DTypeName(parts[i].dtype()), ", but ",
          specs[0].name, " as ", DTypeName(parts[0].dtype()), "; both must be FP8 or neither"));
    }
    return scaled;
  }

  absl::StatusOr<std::unique_ptr<Linear>> ScaledMatrices(const std::vector<WeightSpec>& specs,
                                                         const std::vector<StoredPart>& parts,
                                                         int outputs) {
    std::vector<ScaledPart> scaled;
    for (size_t i = 0; i < specs.size(); ++i) {
      BATON_ASSIGN_OR_RETURN(ScaledPart part, ScaledPart::Find(stage_.weights, specs[i], parts[i]));
      scaled.push_back(std::move(part));
    }
    const auto inputs = static_cast<int>(parts[0].columns());
    std::unique_ptr<Linear> linear = make_scaled_
                                         ? make_scaled_(outputs, inputs, scaled[0].offset())
                                         : make_linear_(outputs, inputs);
    int row_begin = 0;
    const int64_t rows_per_step = std::max<int64_t>(1, kConvertElements / inputs);
    for (size_t i = 0; i < parts.size(); ++i) {
      for (int64_t row = 0; row < parts[i].rows(); row += rows_per_step) {
        const int64_t rows = std::min(rows_per_step, parts[i].rows() - row);
        const int to = row_begin + static_cast<int>(row);
        BATON_RETURN_IF_ERROR(make_scaled_ ? KeepScaled(scaled[i], row, rows, to, *linear)
                                           : WidenScaled(scaled[i], row, rows, to, *linear));
        Report(rows * inputs);
      }
      row_begin += static_cast<int>(parts[i].rows());
    }
    return linear;
  }

  absl::Status KeepScaled(const ScaledPart& part, int64_t row, int64_t rows, int to,
                          Linear& linear) {
    const auto blocks = static_cast<size_t>(linear.blocks());
    rows_.resize(static_cast<size_t>(rows * linear.inputs()));
    scales_.resize(static_cast<size_t>(rows) * blocks);
    BATON_RETURN_IF_ERROR(part.ReadRows(row, rows, rows_));
    for (size_t i = 0; i < static_cast<size_t>(rows); ++i) {
      part.ScalesOfRow(row + static_cast<int64_t>(i),
                       std::span(scales_).subspan(i * blocks, blocks));
    }
    linear.SetRows(rows_.data(), scales_.data(), to, static_cast<int>(rows));
    return absl::OkStatus();
  }

  absl::Status WidenScaled(const ScaledPart& part, int64_t row, int64_t rows, int to,
                           Linear& linear) {
    BATON_CHECK(linear.weights() == ElementType::kFloat32) << "what does not keep FP8 is float32";
    scales_.resize(static_cast<size_t>(rows * linear.inputs()));
    BATON_RETURN_IF_ERROR(part.ReadValues(row, rows, scales_));
    linear.SetRows(reinterpret_cast<const std::byte*>(scales_.data()), nullptr, to,
                   static_cast<int>(rows));
    return absl::OkStatus();
  }

  absl::Status SetRows(const StoredPart& part, int row_begin, Linear& linear) {
    const int64_t inputs = part.columns();
    const int64_t rows_per_step = std::max<int64_t>(1, kConvertElements / inputs);
    for (int64_t row = 0; row < part.rows(); row += rows_per_step) {
      const int64_t rows = std::min(rows_per_step, part.rows() - row);
      BATON_RETURN_IF_ERROR(ReadRows(part, row, rows, linear.weights()));
      linear.SetRows(rows_.data(), nullptr, row_begin + static_cast<int>(row),
                     static_cast<int>(rows));
      Report(rows * inputs);
    }
    return absl::OkStatus();
  }

  // Fills rows_. If the matrix keeps float32 although values are to be rounded, they are rounded
  // first.
  absl::Status ReadRows(const StoredPart& part, int64_t row, int64_t rows, ElementType kept) {
    const int64_t inputs = part.columns();
    const auto count = static_cast<size_t>(rows * inputs);
    rows_.resize(count * ElementBytes(kept));
    if (kept == stage_.dtype || stage_.dtype == ElementType::kFloat32) {
      return ReadAs(part, row * inputs, kept, rows_);
    }
    rounded_.resize(count * ElementBytes(stage_.dtype));
    BATON_RETURN_IF_ERROR(ReadAs(part, row * inputs, stage_.dtype, rounded_));
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
  const ScaledLinearFactory& make_scaled_;
  const HeadLinearFactory& make_heads_;
  const std::function<void(double)>& on_progress_;
  const int64_t elements_total_;
  int64_t elements_done_ = 0;
  std::vector<std::byte> stored_;
  std::vector<std::byte> rounded_;
  std::vector<std::byte> rows_;
  std::vector<float> scales_;  // Or values, where FP8 is widened.
};

}  // namespace

// Tokens of other ranks become zeros: the sum over the ranks is then each token's row.
void StageBlocks::Embed(std::span<const int32_t> tokens, float* out) const {
  for (const int32_t token : tokens) {
    const int32_t row = token - vocabulary.begin;
    if (!vocabulary.Contains(token)) {
      std::fill_n(out, hidden_size, 0.0f);
    } else if (embedding != nullptr) {
      embedding->Gather(std::span(&row, 1), out);
    } else {
      head->Row(row, out);
    }
    if (embedding_scale != 1) {
      for (float& value : std::span(out, static_cast<size_t>(hidden_size)))
        value *= embedding_scale;
    }
    out += hidden_size;
  }
}

namespace {

// The elements that are packed, for the progress. Embeddings are read as they are and not counted.
int64_t PackedElements(const StageSetup& stage) {
  const int64_t total = stage.LayerElements();
  if (!stage.last_stage()) return total;
  return total + FinalNormWeight(stage.config).ElementCount() +
         VocabularyPart(HeadWeight(stage.config), stage.shard).ElementCount();
}

}  // namespace

absl::StatusOr<StageBlocks> LoadStage(StageSetup& stage, const LinearFactory& make_linear,
                                      const ScaledLinearFactory& make_scaled,
                                      const HeadLinearFactory& make_heads,
                                      const std::function<void(double)>& on_progress) {
  const ModelConfig& config = stage.config;
  const bool first = stage.first_stage();
  const bool last = stage.last_stage();
  StageLoader loader(stage, make_linear, make_scaled, make_heads, on_progress,
                     PackedElements(stage));
  StageBlocks blocks;
  blocks.hidden_size = config.hidden_size;
  blocks.embedding_scale = stage.EmbeddingScale();
  blocks.vocabulary = stage.shard.vocabulary;
  // With tied weights and the head on this stage, the head's rows are the embeddings. A second copy
  // would be a sixth of a small model.
  if (first && !(last && config.tie_word_embeddings)) {
    BATON_ASSIGN_OR_RETURN(blocks.embedding, loader.Embeddings());
  }
  for (int layer = stage.kv.layer_begin; layer < stage.kv.layer_end; ++layer) {
    const LayerWeights weights = LayerWeightsOf(config, stage.shard, layer);
    BATON_ASSIGN_OR_RETURN(blocks.layers.emplace_back(),
                           LoadDecoderLayer<LayerBlock>(weights, loader));
  }
  if (last) {
    BATON_ASSIGN_OR_RETURN(blocks.final_norm, loader.Vectors({FinalNormWeight(config)}));
    BATON_ASSIGN_OR_RETURN(blocks.head,
                           loader.Matrices({VocabularyPart(HeadWeight(config), stage.shard)}));
  }
  return blocks;
}

}  // namespace baton
