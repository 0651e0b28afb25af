#include "common/model/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/config_reader.h"
#include "common/model/model_config.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr double kThetaMax = 1e15;
constexpr double kFactorMax = 1e6;
constexpr char kOriginal[] = "original_max_position_embeddings";

// The object that describes the scaling, and what stands beside it.
struct Scaled {
  const ConfigReader& config;
  const ConfigReader& rope;
  int max_position_embeddings;
  int rope_dim;
};

// Hugging Face's files have it in the object, and longrope's beside it.
absl::StatusOr<int> OriginalPositions(const Scaled& in) {
  const ConfigReader& holder = in.rope.Has(kOriginal) ? in.rope : in.config;
  if (!holder.Has(kOriginal)) return in.max_position_embeddings;
  return holder.Int(kOriginal, 1, kMaxPositions);
}

int Stretched(int positions, double factor) {
  return static_cast<int>(std::min<double>(kMaxPositions, std::floor(positions * factor)));
}

absl::Status ParseLinear(const Scaled& in, Rope& rope, RopeScaling& scaling) {
  BATON_ASSIGN_OR_RETURN(scaling.factor, in.rope.Number("factor", 1, kFactorMax));
  rope.max_positions = Stretched(in.max_position_embeddings, scaling.factor);
  return absl::OkStatus();
}

absl::Status ParseLlama3(const Scaled& in, Rope& /*rope*/, RopeScaling& scaling) {
  const ConfigReader& keys = in.rope;
  BATON_ASSIGN_OR_RETURN(scaling.factor, keys.Number("factor", 1, kFactorMax));
  BATON_ASSIGN_OR_RETURN(scaling.low_freq_factor, keys.Number("low_freq_factor", 1e-6, 1e6));
  BATON_ASSIGN_OR_RETURN(scaling.high_freq_factor, keys.Number("high_freq_factor", 1e-6, 1e6));
  BATON_ASSIGN_OR_RETURN(scaling.original_max_position_embeddings,
                         keys.Int(kOriginal, 1, kMaxPositions));
  if (scaling.high_freq_factor > scaling.low_freq_factor) return absl::OkStatus();
  return keys.Error("high_freq_factor", "must be greater than \"low_freq_factor\"");
}

// YaRN's own formula; models that were trained with other constants name them (mscale).
double YarnMagnitude(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

absl::Status ParseYarnMagnitude(const ConfigReader& keys, RopeScaling& scaling) {
  BATON_ASSIGN_OR_RETURN(const double mscale, keys.NumberOr("mscale", 0, 0, kFactorMax));
  BATON_ASSIGN_OR_RETURN(const double all_dim, keys.NumberOr("mscale_all_dim", 0, 0, kFactorMax));
  const double by_formula = mscale > 0 && all_dim > 0 ? YarnMagnitude(scaling.factor, mscale) /
                                                            YarnMagnitude(scaling.factor, all_dim)
                                                      : YarnMagnitude(scaling.factor, 1);
  if (all_dim > 0) scaling.score_magnitude = YarnMagnitude(scaling.factor, all_dim);
  BATON_ASSIGN_OR_RETURN(scaling.magnitude,
                         keys.NumberOr("attention_factor", by_formula, 1e-6, kFactorMax));
  return absl::OkStatus();
}

absl::Status ParseYarn(const Scaled& in, Rope& rope, RopeScaling& scaling) {
  const ConfigReader& keys = in.rope;
  BATON_ASSIGN_OR_RETURN(const int original, OriginalPositions(in));
  scaling.original_max_position_embeddings = original;
  if (keys.Has("factor") || original >= in.max_position_embeddings) {
    BATON_ASSIGN_OR_RETURN(scaling.factor, keys.Number("factor", 1, kFactorMax));
  } else {
    scaling.factor = static_cast<double>(in.max_position_embeddings) / original;
  }
  BATON_RETURN_IF_ERROR(ParseYarnMagnitude(keys, scaling));
  BATON_ASSIGN_OR_RETURN(scaling.beta_fast, keys.NumberOr("beta_fast", 32, 1e-6, 1e6));
  BATON_ASSIGN_OR_RETURN(scaling.beta_slow, keys.NumberOr("beta_slow", 1, 1e-6, 1e6));
  BATON_ASSIGN_OR_RETURN(scaling.truncate, keys.BoolOr("truncate", true));
  if (scaling.beta_fast < scaling.beta_slow) {
    return keys.Error("beta_fast", "must be at least \"beta_slow\"");
  }
  if (rope.theta <= 1) return in.config.Error("rope_theta", "must be greater than 1 for yarn");
  // Some files name the stretched length, others the original one in both places.
  rope.max_positions = std::max(in.max_position_embeddings, Stretched(original, scaling.factor));
  return absl::OkStatus();
}

// Up to the original context the frequencies are those of a model that isn't stretched.
absl::Status LimitDynamic(const Scaled& in, Rope& rope) {
  BATON_RETURN_IF_ERROR(in.rope.Number("factor", 1, kFactorMax).status());
  BATON_ASSIGN_OR_RETURN(const int original, OriginalPositions(in));
  rope.max_positions = std::min(in.max_position_embeddings, original);
  return absl::OkStatus();
}

absl::Status ParseDivisors(const ConfigReader& keys, const char* key, int rope_dim,
                           std::vector<double>& divisors) {
  const Json* list = keys.Find(key);
  if (list == nullptr) return keys.Error(key, "is missing; it is mandatory");
  const auto size = static_cast<size_t>(rope_dim) / 2;
  if (!list->is_array() || list->size() != size) {
    return keys.Error(
        key, absl::StrCat("must list ", size, " numbers, one for each pair that is turned"));
  }
  for (const Json& value : *list) {
    const double divisor = value.is_number() ? value.get<double>() : 0;
    if (!(divisor >= 1e-6 && divisor <= kFactorMax)) {
      return keys.Error(key, absl::StrCat("must list numbers greater than 0, got ", value.dump()));
    }
    divisors.push_back(divisor);
  }
  return absl::OkStatus();
}

absl::Status ParseLongRope(const Scaled& in, Rope& rope, RopeScaling& scaling) {
  const ConfigReader& keys = in.rope;
  BATON_RETURN_IF_ERROR(ParseDivisors(keys, "short_factor", in.rope_dim, scaling.divisors));
  BATON_RETURN_IF_ERROR(ParseDivisors(keys, "long_factor", in.rope_dim, scaling.long_divisors));
  BATON_ASSIGN_OR_RETURN(const int original, OriginalPositions(in));
  const double ratio = static_cast<double>(in.max_position_embeddings) / original;
  BATON_ASSIGN_OR_RETURN(scaling.factor, keys.NumberOr("factor", ratio, 1e-6, kFactorMax));
  if (in.config.Has(kOriginal)) scaling.factor = ratio;
  const double by_formula =
      scaling.factor <= 1 || original <= 1
          ? 1
          : std::sqrt(1 + std::log(scaling.factor) / std::log(static_cast<double>(original)));
  BATON_ASSIGN_OR_RETURN(scaling.magnitude,
                         keys.NumberOr("attention_factor", by_formula, 1e-6, kFactorMax));
  scaling.long_positions = in.max_position_embeddings;
  rope.max_positions = std::min(in.max_position_embeddings, original);
  return absl::OkStatus();
}

absl::Status ParseScaling(const Scaled& in, const char* type_key, Rope& rope) {
  struct Known {
    std::string_view name;
    RopeKind kind;
    absl::Status (*parse)(const Scaled&, Rope&, RopeScaling&);
  };
  static constexpr Known kKnown[] = {
      {"linear", RopeKind::kLinear, ParseLinear}, {"llama3", RopeKind::kLlama3, ParseLlama3},
      {"yarn", RopeKind::kYarn, ParseYarn},       {"longrope", RopeKind::kLongRope, ParseLongRope},
      {"su", RopeKind::kLongRope, ParseLongRope},  // Its name at first.
  };
  BATON_ASSIGN_OR_RETURN(const std::string type, in.rope.StringOr(type_key, "default"));
  if (type == "default") return absl::OkStatus();
  if (type == "dynamic") return LimitDynamic(in, rope);
  for (const Known& known : kKnown) {
    if (known.name != type) continue;
    RopeScaling scaling;
    scaling.kind = known.kind;
    BATON_RETURN_IF_ERROR(known.parse(in, rope, scaling));
    rope.scaling = std::move(scaling);
    return absl::OkStatus();
  }
  return in.rope.Unsupported(
      type_key, absl::StrCat("is \"", type, "\"; supported are \"default\", \"linear\", ",
                             "\"dynamic\", \"llama3\", \"yarn\" and \"longrope\""));
}

}  // namespace

const char* RopeKindName(RopeKind kind) {
  switch (kind) {
    case RopeKind::kLinear:
      return "linear";
    case RopeKind::kLlama3:
      return "llama3";
    case RopeKind::kYarn:
      return "yarn";
    case RopeKind::kLongRope:
      return "longrope";
  }
  return "";
}

absl::StatusOr<Rope> ParseRope(const ConfigReader& reader, int max_position_embeddings,
                               int rope_dim, const RopeOfClass& by_class) {
  Rope parsed;
  parsed.max_positions = max_position_embeddings;
  BATON_ASSIGN_OR_RETURN(parsed.theta, reader.NumberOr("rope_theta", by_class.theta, 1, kThetaMax));
  for (const char* key : kRopeKeys) {
    const Json* object = reader.Find(key);
    if (object == nullptr) continue;
    if (!object->is_object()) return reader.Error(key, "must be an object");
    const bool by_type = *by_class.layer_type != '\0' && std::string_view(key) == "rope_parameters";
    BATON_ASSIGN_OR_RETURN(const ConfigReader rope,
                           reader.Inside(key).Part(by_type ? by_class.layer_type : ""));
    if (by_type) object = &object->at(by_class.layer_type);
    if (rope.Has("rope_theta")) {
      BATON_ASSIGN_OR_RETURN(const double theta, rope.Number("rope_theta", 1, kThetaMax));
      if (reader.Has("rope_theta") && theta != parsed.theta) {
        return rope.Error("rope_theta", "differs from the \"rope_theta\" beside it");
      }
      parsed.theta = theta;
    }
    const char* type_key = rope.Has("rope_type") || !rope.Has("type") ? "rope_type" : "type";
    if (!rope.Has(type_key) && std::string_view(key) == "rope_scaling" && !object->empty()) {
      return rope.Error(type_key, "is missing; it says which scaling the other keys describe");
    }
    for (const auto& [name, value] : object->items()) {
      if (value.is_object()) return rope.Unsupported(name.c_str(), "differs by layer type");
    }
    BATON_RETURN_IF_ERROR(
        ParseScaling({reader, rope, max_position_embeddings, rope_dim}, type_key, parsed));
  }
  if (!by_class.stretches_positions) {
    parsed.max_positions = std::min(parsed.max_positions, max_position_embeddings);
  }
  return parsed;
}

}  // namespace baton
