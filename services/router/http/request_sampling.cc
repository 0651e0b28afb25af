#include "services/router/http/request_sampling.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/strings.h"
#include "services/router/http/request_prompt.h"

namespace baton::router {
namespace {

constexpr double kLongestTimeoutS = 1e9;  // Longer is as good as none; it fits milliseconds.

// {"50256": -100}: keys are token ids as text.
absl::Status ReadLogitBias(const Fields& fields, SamplingRequest& sampling) {
  const Json* biases = fields.Find("logit_bias");
  if (biases == nullptr) return absl::OkStatus();
  if (!biases->is_object()) return fields.Wrong("logit_bias", "an object of token ids and biases");
  for (const auto& [key, bias] : biases->items()) {
    int64_t id = 0;
    if (!absl::SimpleAtoi(key, &id)) {
      return InvalidField(fields.Path("logit_bias"),
                          absl::StrCat("\"", key.substr(0, 64), "\" is not a token id"));
    }
    if (!bias.is_number()) {
      return InvalidField(
          fields.Path("logit_bias"),
          absl::StrCat("the bias of ", key, " must be a number, got ", Describe(bias)));
    }
    sampling.logit_bias.emplace_back(id, bias.get<double>());
  }
  return absl::OkStatus();
}

absl::Status ReadLengths(const Fields& fields, GenerateCall& call) {
  // A client may send the old and the new name at once.
  BATON_ASSIGN_OR_RETURN(call.names.max_tokens,
                         fields.OneOf({"max_tokens", "max_completion_tokens", "max_new_tokens"}));
  BATON_ASSIGN_OR_RETURN(call.sampling.max_tokens, fields.Integer(call.names.max_tokens));
  BATON_ASSIGN_OR_RETURN(const std::string min_tokens,
                         fields.OneOf({"min_tokens", "min_new_tokens"}));
  BATON_ASSIGN_OR_RETURN(const auto least, fields.Integer(min_tokens));
  call.sampling.min_tokens = least.value_or(0);
  return absl::OkStatus();
}

absl::Status ReadPenalties(const Fields& fields, SamplingRequest& sampling) {
  BATON_ASSIGN_OR_RETURN(sampling.presence_penalty, fields.Number("presence_penalty"));
  BATON_ASSIGN_OR_RETURN(sampling.frequency_penalty, fields.Number("frequency_penalty"));
  BATON_ASSIGN_OR_RETURN(sampling.repetition_penalty, fields.Number("repetition_penalty"));
  return ReadLogitBias(fields, sampling);
}

absl::Status ReadText(const Fields& fields, TextOptions& text) {
  BATON_ASSIGN_OR_RETURN(const auto skip, fields.Bool("skip_special_tokens"));
  text.skip_special_tokens = skip.value_or(true);
  BATON_ASSIGN_OR_RETURN(const std::string include,
                         fields.OneOf({"include_stop_str_in_output", "no_stop_trim"}));
  BATON_ASSIGN_OR_RETURN(const auto include_stop, fields.Bool(include));
  text.include_stop = include_stop.value_or(false);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Milliseconds(const std::string& field, double seconds) {
  if (!(seconds > 0) || !std::isfinite(seconds)) {
    return InvalidField(field, absl::StrCat("must be seconds greater than 0, is ", seconds));
  }
  return static_cast<int64_t>(std::ceil(std::min(seconds, kLongestTimeoutS) * 1000));
}

}  // namespace

absl::Status ReadSampling(const Fields& fields, GenerateCall& call) {
  SamplingRequest& sampling = call.sampling;
  BATON_ASSIGN_OR_RETURN(sampling.temperature, fields.Number("temperature"));
  BATON_ASSIGN_OR_RETURN(sampling.top_k, fields.Integer("top_k"));
  BATON_ASSIGN_OR_RETURN(sampling.top_p, fields.Number("top_p"));
  BATON_ASSIGN_OR_RETURN(sampling.min_p, fields.Number("min_p"));
  BATON_ASSIGN_OR_RETURN(const std::string seed, fields.OneOf({"seed", "sampling_seed"}));
  BATON_ASSIGN_OR_RETURN(sampling.seed, fields.Seed(seed));
  BATON_ASSIGN_OR_RETURN(const auto ignore_eos, fields.Bool("ignore_eos"));
  sampling.ignore_eos = ignore_eos.value_or(false);
  BATON_ASSIGN_OR_RETURN(auto stop, fields.Strings("stop"));
  sampling.stop = std::move(stop).value_or(std::vector<std::string>());
  BATON_ASSIGN_OR_RETURN(auto stop_ids, fields.Integers("stop_token_ids"));
  sampling.stop_token_ids = std::move(stop_ids).value_or(std::vector<int64_t>());
  BATON_RETURN_IF_ERROR(ReadLengths(fields, call));
  BATON_RETURN_IF_ERROR(ReadPenalties(fields, sampling));
  return ReadText(fields, call.text);
}

absl::StatusOr<int64_t> ReadCount(const Fields& fields, const char* name, int64_t absent) {
  BATON_ASSIGN_OR_RETURN(const auto count, fields.Integer(name));
  const int64_t value = count.value_or(absent);
  if (value >= 1 && value <= static_cast<int64_t>(kMaxCallsPerAnswer)) return value;
  return InvalidField(fields.Path(name),
                      absl::StrCat("must be from 1 to ", kMaxCallsPerAnswer, ", is ", value));
}

absl::StatusOr<std::string> ReadCacheSalt(const Fields& fields) {
  BATON_ASSIGN_OR_RETURN(const auto salt, fields.String("cache_salt"));
  BATON_ASSIGN_OR_RETURN(const auto key, fields.String("extra_key"));
  if (!key.has_value() || key->empty()) return salt.value_or("");
  // The length tells where one ends, so that no two pairs are the same.
  return absl::StrCat(key->size(), ":", *key, salt.value_or(""));
}

absl::StatusOr<int64_t> ReadPriority(const Fields& fields) {
  BATON_ASSIGN_OR_RETURN(const auto priority, fields.Integer("priority"));
  return priority.value_or(0);
}

absl::StatusOr<int64_t> ReadTimeoutMs(const Fields& fields, std::string_view header) {
  int64_t timeout_ms = 0;
  BATON_ASSIGN_OR_RETURN(const auto field, fields.Number("timeout"));
  if (field.has_value()) {
    BATON_ASSIGN_OR_RETURN(timeout_ms, Milliseconds("timeout", *field));
  }
  if (header.empty()) return timeout_ms;
  double seconds = 0;
  if (!absl::SimpleAtod(ToAbsl(header), &seconds)) {
    return InvalidField("X-Request-Timeout", "must be a number of seconds");
  }
  BATON_ASSIGN_OR_RETURN(const int64_t header_ms, Milliseconds("X-Request-Timeout", seconds));
  return timeout_ms == 0 ? header_ms : std::min(timeout_ms, header_ms);
}

}  // namespace baton::router
