#include "common/model/generation_defaults.h"

#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/json/parse_json.h"
#include "common/model/config_reader.h"

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxBytes = size_t{1} << 20;
constexpr double kSmallest = std::numeric_limits<float>::min();  // As a float still above 0.

absl::Status ReadNumber(const ConfigReader& reader, const char* key, double low, double high,
                        std::optional<double>& value) {
  if (!reader.Has(key)) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(value, reader.Number(key, low, high));
  return absl::OkStatus();
}

absl::Status ReadInt(const ConfigReader& reader, const char* key, int low,
                     std::optional<int>& value) {
  if (!reader.Has(key)) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(value, reader.Int(key, low, std::numeric_limits<int>::max()));
  return absl::OkStatus();
}

}  // namespace

std::string GenerationDefaults::ToString() const {
  std::vector<std::string> parts;
  const auto add = [&parts](const char* name, const auto& value) {
    if (value.has_value()) parts.push_back(absl::StrCat(name, " ", *value));
  };
  add("temperature", temperature);
  add("top_k", top_k);
  add("top_p", top_p);
  add("min_p", min_p);
  add("repetition_penalty", repetition_penalty);
  add("max_new_tokens", max_new_tokens);
  return absl::StrJoin(parts, ", ");
}

absl::StatusOr<GenerationDefaults> ParseGenerationDefaults(std::string_view json,
                                                           const std::string& file) {
  BATON_ASSIGN_OR_RETURN(const Json object, ParseJson(json, file));
  if (!object.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": must be a JSON object"));
  }
  const ConfigReader reader(object, file);
  GenerationDefaults defaults;
  constexpr double kFloatMax = std::numeric_limits<float>::max();
  BATON_RETURN_IF_ERROR(ReadNumber(reader, "temperature", 0, kFloatMax, defaults.temperature));
  BATON_RETURN_IF_ERROR(ReadInt(reader, "top_k", -1, defaults.top_k));
  BATON_RETURN_IF_ERROR(ReadNumber(reader, "top_p", kSmallest, 1, defaults.top_p));
  BATON_RETURN_IF_ERROR(ReadNumber(reader, "min_p", 0, 1, defaults.min_p));
  BATON_RETURN_IF_ERROR(
      ReadNumber(reader, "repetition_penalty", kSmallest, 2, defaults.repetition_penalty));
  BATON_RETURN_IF_ERROR(ReadInt(reader, "max_new_tokens", 1, defaults.max_new_tokens));
  BATON_ASSIGN_OR_RETURN(const bool samples, reader.BoolOr("do_sample", true));
  if (!samples) defaults.temperature = 0;
  return defaults;
}

absl::StatusOr<GenerationDefaults> LoadGenerationDefaults(const std::string& model_path) {
  const std::string file = absl::StrCat(model_path, "/generation_config.json");
  const absl::StatusOr<std::string> text = ReadTextFile(file, kMaxBytes);
  if (absl::IsNotFound(text.status())) return GenerationDefaults();
  BATON_RETURN_IF_ERROR(text.status());
  return ParseGenerationDefaults(*text, file);
}

}  // namespace baton
