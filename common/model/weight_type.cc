#include "common/model/weight_type.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace baton {

absl::StatusOr<ElementType> StoredWeightType(WeightReader& reader, const ModelConfig& config) {
  if (config.torch_dtype == "float16") return ElementType::kFloat32;
  if (const auto said = ParseElementType(config.torch_dtype)) return *said;
  BATON_ASSIGN_OR_RETURN(const StoredTensor embeddings,
                         FindWeight(reader, EmbeddingWeight(config)));
  return embeddings.dtype == DType::kBF16 ? ElementType::kBFloat16 : ElementType::kFloat32;
}

absl::Status CheckStoredAs(const WeightSpec& spec, const StoredTensor& tensor, ElementType type) {
  const bool exact = type == ElementType::kFloat32 || tensor.dtype == DType::kBF16;
  if (exact || spec.shape.size() < 2) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "tensor ", spec.name, " is stored as ", DTypeName(tensor.dtype), ", while the checkpoint is ",
      ElementTypeName(type), " by its config.json or its embeddings; say --dtype=float32 to keep ",
      "all of it, or --dtype=", ElementTypeName(type), " to round this"));
}

}  // namespace baton
