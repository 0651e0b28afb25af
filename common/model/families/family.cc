#include "common/model/families/family.h"

#include "absl/strings/str_cat.h"

namespace baton {

std::span<const Family* const> Families() {
  // A table, not self-registering objects: those vanish when a static library is linked without
  // alwayslink, and only in the shipped binary.
  static constexpr const Family* kFamilies[] = {&kLlama, &kQwen2, &kQwen3};
  return kFamilies;
}

const Family* FindFamily(std::string_view architecture) {
  for (const Family* family : Families()) {
    if (architecture == family->architecture) return family;
  }
  return nullptr;
}

absl::Status DeriveHeadDim(const ConfigReader& reader, ModelConfig& config) {
  if (config.head_dim != 0) return absl::OkStatus();
  if (config.hidden_size % config.num_attention_heads != 0) {
    return reader.Error(
        "num_attention_heads",
        absl::StrCat("is ", config.num_attention_heads, ", which does not divide \"hidden_size\" (",
                     config.hidden_size, "), and \"head_dim\" is not given"));
  }
  config.head_dim = config.hidden_size / config.num_attention_heads;
  return absl::OkStatus();
}

}  // namespace baton
