// The type that a checkpoint's weights are computed from if no type is named (--dtype auto).
#ifndef COMMON_MODEL_WEIGHT_TYPE_H_
#define COMMON_MODEL_WEIGHT_TYPE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "common/model/safetensors.h"
#include "common/model/weight_names.h"
#include "common/types/element_type.h"

namespace baton {

// What config.json's torch_dtype says, as Hugging Face reads it: bfloat16, or float32 for float32
// and float16, which float32 holds exactly and bfloat16 does not. Where it says nothing that Baton
// knows, the type of the stored embeddings. All stages of a chain see the same, whichever layers
// are theirs. Errors are FindWeight's.
absl::StatusOr<ElementType> StoredWeightType(WeightReader& reader, const ModelConfig& config);

// OK unless a matrix stored as `tensor` would lose bits as `type`. InvalidArgument names the tensor
// and both types: a checkpoint of mixed types is an error until the user names the type. Vectors
// (norms, biases) are never refused: Baton's kernels keep them in float32.
absl::Status CheckStoredAs(const WeightSpec& spec, const StoredTensor& tensor, ElementType type);

}  // namespace baton

#endif  // COMMON_MODEL_WEIGHT_TYPE_H_
