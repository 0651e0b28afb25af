#include "services/router/http/request_sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/engine/sampling/check_sampling.h"
#include "services/router/http/request_prompt.h"

namespace baton::router {
namespace {

constexpr double kLongestTimeoutS = 1e9;  // Longer is as good as none; it fits milliseconds.

// A field of v1::SamplingParams and what clients call it; of several names one may be given.
struct HttpName {
  const char* field;
  std::vector<const char*> names;
};

// What needs a reader of its own: log-probabilities, which every endpoint asks for otherwise, and
// structures (request_structure.h).
const std::vector<HttpName>& HttpNames() {
  static const auto* const names = new std::vector<HttpName>{
      {"temperature", {"temperature"}},
      {"top_k", {"top_k"}},
      {"top_p", {"top_p"}},
      {"min_p", {"min_p"}},
      {"seed", {"seed", "sampling_seed"}},
      {"stop", {"stop"}},
      {"stop_token_ids", {"stop_token_ids"}},
      {"ignore_eos", {"ignore_eos"}},
      {"max_tokens", {"max_tokens", "max_completion_tokens", "max_new_tokens"}},
      {"min_tokens", {"min_tokens", "min_new_tokens"}},
      {"presence_penalty", {"presence_penalty"}},
      {"frequency_penalty", {"frequency_penalty"}},
      {"repetition_penalty", {"repetition_penalty"}},
      {"logit_bias", {"logit_bias"}},
  };
  return *names;
}

absl::StatusOr<int32_t> TokenId(int64_t id, const std::string& path) {
  if (id >= 0 && id <= std::numeric_limits<int32_t>::max()) return static_cast<int32_t>(id);
  return InvalidField(path, absl::StrCat("token id ", id, " is outside the vocabulary"));
}

// {"50256": -100}: keys are token ids as text.
absl::Status ReadLogitBias(const Fields& fields, v1::SamplingParams& sampling) {
  const Json* biases = fields.Find("logit_bias");
  if (biases == nullptr) return absl::OkStatus();
  if (!biases->is_object()) return fields.Wrong("logit_bias", "an object of token ids and biases");
  const std::string path = fields.Path("logit_bias");
  for (const auto& [key, bias] : biases->items()) {
    int64_t id = 0;
    if (!absl::SimpleAtoi(key, &id)) {
      return InvalidField(path, absl::StrCat("\"", key.substr(0, 64), "\" is not a token id"));
    }
    if (!bias.is_number()) {
      return InvalidField(
          path, absl::StrCat("the bias of ", key, " must be a number, got ", Describe(bias)));
    }
    v1::LogitBias& entry = *sampling.add_logit_bias();
    BATON_ASSIGN_OR_RETURN(const int32_t token, TokenId(id, path));
    entry.set_token_id(token);
    entry.set_bias(bias.get<float>());
  }
  return absl::OkStatus();
}

absl::Status ReadList(const Fields& fields, const google::protobuf::FieldDescriptor* field,
                      const std::string& name, v1::SamplingParams& sampling) {
  using Field = google::protobuf::FieldDescriptor;
  const auto* const reflection = sampling.GetReflection();
  if (field->cpp_type() == Field::CPPTYPE_STRING) {
    BATON_ASSIGN_OR_RETURN(const auto texts, fields.Strings(name));
    for (const std::string& text : texts.value_or(std::vector<std::string>())) {
      reflection->AddString(&sampling, field, text);
    }
    return absl::OkStatus();
  }
  if (field->cpp_type() == Field::CPPTYPE_MESSAGE) return ReadLogitBias(fields, sampling);
  BATON_ASSIGN_OR_RETURN(const auto ids, fields.Integers(name));
  for (const int64_t id : ids.value_or(std::vector<int64_t>())) {
    BATON_ASSIGN_OR_RETURN(const int32_t token, TokenId(id, fields.Path(name)));
    reflection->AddInt32(&sampling, field, token);
  }
  return absl::OkStatus();
}

// One field, by its type.
absl::Status ReadField(const Fields& fields, const google::protobuf::FieldDescriptor* field,
                       const std::string& name, v1::SamplingParams& sampling) {
  using Field = google::protobuf::FieldDescriptor;
  if (fields.Find(name) == nullptr) return absl::OkStatus();
  if (field->is_repeated()) return ReadList(fields, field, name, sampling);
  const auto* const reflection = sampling.GetReflection();
  switch (field->cpp_type()) {
    case Field::CPPTYPE_FLOAT: {
      BATON_ASSIGN_OR_RETURN(const auto value, fields.Number(name));
      // What is positive stays so.
      const auto narrow = static_cast<float>(*value);
      reflection->SetFloat(
          &sampling, field,
          *value > 0 ? std::max(narrow, std::numeric_limits<float>::min()) : narrow);
      return absl::OkStatus();
    }
    case Field::CPPTYPE_INT32: {
      BATON_ASSIGN_OR_RETURN(const auto value, fields.Integer(name));
      BATON_RETURN_IF_ERROR(CheckSamplingNumber(field->name(), *value, fields.Path(name)));
      reflection->SetInt32(&sampling, field, static_cast<int32_t>(*value));
      return absl::OkStatus();
    }
    case Field::CPPTYPE_UINT64: {
      BATON_ASSIGN_OR_RETURN(const auto value, fields.Seed(name));
      reflection->SetUInt64(&sampling, field, *value);
      return absl::OkStatus();
    }
    default: {
      BATON_ASSIGN_OR_RETURN(const auto value, fields.Bool(name));
      reflection->SetBool(&sampling, field, *value);
      return absl::OkStatus();
    }
  }
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

std::vector<std::string> SamplingNames() {
  std::vector<std::string> all = {"skip_special_tokens", "include_stop_str_in_output",
                                  "no_stop_trim", "n"};
  for (const HttpName& entry : HttpNames()) {
    all.insert(all.end(), entry.names.begin(), entry.names.end());
  }
  return all;
}

std::vector<std::string> SharedSamplingNames() {
  std::vector<std::string> shared;
  for (const HttpName& entry : HttpNames()) {
    const std::string_view field = entry.field;
    if (field != "max_tokens" && field != "stop") shared.emplace_back(entry.names.front());
  }
  return shared;
}

absl::Status ReadSampling(const Fields& fields, GenerateCall& call) {
  for (const HttpName& entry : HttpNames()) {
    // A client may send the old and the new name at once.
    BATON_ASSIGN_OR_RETURN(const std::string name, fields.OneOf(entry.names));
    if (entry.field == std::string_view("max_tokens")) call.names.max_tokens = name;
    const auto* const field = v1::SamplingParams::descriptor()->FindFieldByName(entry.field);
    BATON_CHECK(field != nullptr) << entry.field;
    BATON_RETURN_IF_ERROR(ReadField(fields, field, name, call.sampling));
  }
  return ReadText(fields, call.text);
}

absl::Status SetTopLogprobs(int64_t count, const std::string& name, v1::SamplingParams& sampling) {
  BATON_RETURN_IF_ERROR(CheckSamplingNumber("top_logprobs", count, name));
  sampling.set_top_logprobs(static_cast<int32_t>(count));
  return absl::OkStatus();
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
