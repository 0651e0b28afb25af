#include "common/engine/sampling/check_sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/base/strings.h"

namespace baton {
namespace {

constexpr double kInt32Max = std::numeric_limits<int32_t>::max();
constexpr double kFloatMax = std::numeric_limits<float>::max();

// A number of the message, from `least` on or above it.
struct Range {
  std::string_view field;
  double least;
  double most;
  bool above = false;
  std::string_view words;
};

constexpr Range kRanges[] = {
    {"temperature", 0, kFloatMax, false, "a finite number of at least 0"},
    {"top_k", -1, kInt32Max, false, "from -1 to 2147483647"},
    {"top_p", 0, 1, true, "greater than 0 and at most 1"},
    {"min_p", 0, 1, false, "from 0 to 1"},
    {"max_tokens", 0, kInt32Max, false, "from 0 to 2147483647"},
    {"min_tokens", 0, kInt32Max, false, "from 0 to 2147483647"},
    {"top_logprobs", 0, kMaxTopLogprobs, false, "from 0 to 20"},
    {"presence_penalty", -2, 2, false, "from -2 to 2"},
    {"frequency_penalty", -2, 2, false, "from -2 to 2"},
    {"repetition_penalty", 0, 2, true, "greater than 0 and at most 2"},
};

// Written so that NaN is outside.
bool Within(const Range& range, double value) {
  return (range.above ? value > range.least : value >= range.least) && value <= range.most;
}

absl::Status CheckRanges(const v1::SamplingParams& sampling, const SamplingName& name) {
  using Field = google::protobuf::FieldDescriptor;
  const auto* const reflection = sampling.GetReflection();
  for (const Range& range : kRanges) {
    const Field* const field = sampling.GetDescriptor()->FindFieldByName(std::string(range.field));
    BATON_CHECK(field != nullptr) << range.field;
    if (field->has_presence() && !reflection->HasField(sampling, field)) continue;
    const bool real = field->cpp_type() == Field::CPPTYPE_FLOAT;
    const double value = real ? double{reflection->GetFloat(sampling, field)}
                              : double{static_cast<double>(reflection->GetInt32(sampling, field))};
    if (Within(range, value)) continue;
    // As it is written, not as the next float.
    const std::string shown =
        real ? absl::StrCat(reflection->GetFloat(sampling, field)) : absl::StrCat(value);
    return InvalidField(name(range.field), Concat("must be ", range.words, ", is ", shown));
  }
  return absl::OkStatus();
}

absl::Status CheckIds(const std::string& field, const std::vector<int32_t>& ids, int vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    return InvalidField(field, absl::StrCat("token id ", ids[i], " at index ", i,
                                            " is outside the vocabulary, 0 to ", vocab_size - 1));
  }
  return absl::OkStatus();
}

absl::Status CheckStops(const v1::SamplingParams& sampling, const SamplingBounds& bounds,
                        const SamplingName& name) {
  const std::string stop = name("stop");
  if (static_cast<size_t>(sampling.stop_size()) > kMaxStops) {
    return InvalidField(stop, absl::StrCat("must have at most ", kMaxStops, " strings, has ",
                                           sampling.stop_size()));
  }
  for (const std::string& text : sampling.stop()) {
    if (text.empty()) return InvalidField(stop, "a stop string must not be empty");
    if (text.size() > kMaxStopBytes) {
      return InvalidField(stop, absl::StrCat("a stop string must have at most ", kMaxStopBytes,
                                             " bytes, one has ", text.size()));
    }
  }
  const std::string ids = name("stop_token_ids");
  if (static_cast<size_t>(sampling.stop_token_ids_size()) > bounds.most_stop_token_ids) {
    return InvalidField(ids, absl::StrCat("must have at most ", bounds.most_stop_token_ids,
                                          " ids, has ", sampling.stop_token_ids_size()));
  }
  return CheckIds(ids, {sampling.stop_token_ids().begin(), sampling.stop_token_ids().end()},
                  bounds.vocab_size);
}

absl::Status CheckLogitBias(const v1::SamplingParams& sampling, int vocab_size,
                            const std::string& field) {
  if (static_cast<size_t>(sampling.logit_bias_size()) > kMaxLogitBiases) {
    return InvalidField(field, absl::StrCat("must have at most ", kMaxLogitBiases, " tokens, has ",
                                            sampling.logit_bias_size()));
  }
  std::vector<int32_t> ids;
  for (const v1::LogitBias& entry : sampling.logit_bias()) {
    ids.push_back(entry.token_id());
    if (!(std::fabs(entry.bias()) <= kMaxLogitBias)) {
      return InvalidField(field, absl::StrCat("must be from -100 to 100, is ", entry.bias()));
    }
  }
  BATON_RETURN_IF_ERROR(CheckIds(field, ids, vocab_size));
  std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  if (twice == ids.end()) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("names the token ", *twice, " twice"));
}

}  // namespace

absl::Status CheckSampling(const v1::SamplingParams& sampling, const SamplingBounds& bounds,
                           const SamplingName& name) {
  BATON_RETURN_IF_ERROR(CheckRanges(sampling, name));
  const int64_t max_tokens =
      sampling.has_max_tokens() ? sampling.max_tokens() : bounds.default_max_tokens;
  if (sampling.min_tokens() > max_tokens) {
    return InvalidField(name("min_tokens"),
                        absl::StrCat("must be at most ", name("max_tokens"), " = ", max_tokens,
                                     sampling.has_max_tokens() ? "" : " (the default)", ", is ",
                                     sampling.min_tokens()));
  }
  if (sampling.top_logprobs() > 0 && !sampling.logprobs() && !sampling.prompt_logprobs()) {
    return InvalidField(name("top_logprobs"), "needs logprobs to be set");
  }
  BATON_RETURN_IF_ERROR(CheckLogitBias(sampling, bounds.vocab_size, name("logit_bias")));
  return CheckStops(sampling, bounds, name);
}

absl::Status CheckSamplingNumber(std::string_view field, int64_t value, const std::string& called) {
  const Range* const range =
      std::find_if(std::begin(kRanges), std::end(kRanges),
                   [&](const Range& candidate) { return candidate.field == field; });
  BATON_CHECK(range != std::end(kRanges)) << field;
  if (Within(*range, static_cast<double>(value))) return absl::OkStatus();
  return InvalidField(called, Concat("must be ", range->words, ", is ", value));
}

}  // namespace baton
