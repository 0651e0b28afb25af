// Phi-3, 3.5 and 4: Llama whose queries, keys and values are stored as one matrix, as are gate and
// up, with a window or a part of each head turned if config.json says so.
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/families/family.h"

namespace baton {
namespace {

// The class knows no other kinds, and takes "yarn" for longrope.
absl::Status CheckRopeKind(const ConfigReader& reader) {
  constexpr const char* kOriginal = "original_max_position_embeddings";
  for (const char* key : kRopeKeys) {
    const nlohmann::json* object = reader.Find(key);
    if (object == nullptr || !object->is_object()) continue;  // ParseRope says what is wrong.
    const ConfigReader rope = reader.Inside(key);
    const char* const type_key = rope.Has("rope_type") ? "rope_type" : "type";
    BATON_ASSIGN_OR_RETURN(const std::string type, rope.StringOr(type_key, "default"));
    if (type == "default") continue;
    if (type != "longrope" && type != "su") {
      return rope.Unsupported(type_key, absl::StrCat("is \"", type, "\"; supported for Phi-3 are ",
                                                     "\"default\" and \"longrope\""));
    }
    // Other classes would take "max_position_embeddings", this one 4,096.
    if (reader.Has(kOriginal) || rope.Has(kOriginal)) continue;
    return reader.Error(kOriginal, "is missing; it is mandatory with longrope");
  }
  return absl::OkStatus();
}

absl::Status Configure(const ConfigReader& reader, ModelConfig& config) {
  for (const char* key : {"attention_bias", "lm_head_bias"}) {
    BATON_RETURN_IF_ERROR(reader.RefuseUnless(key, 0, "is not supported for Phi-3"));
  }
  BATON_RETURN_IF_ERROR(RequireNormAndTheta(reader));
  BATON_RETURN_IF_ERROR(CheckRopeKind(reader));
  BATON_RETURN_IF_ERROR(ParseSlidingWindow(reader, config.max_position_embeddings, config));
  config.fused = true;
  BATON_RETURN_IF_ERROR(DeriveHeadDim(reader, config));
  return ParsePartialRotary(reader, 1, config);
}

}  // namespace

const Family kPhi3 = {"Phi3ForCausalLM", "phi3", 4096, 0, {"partial_rotary_factor"}, Configure};

}  // namespace baton
