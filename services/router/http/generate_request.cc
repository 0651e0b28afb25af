#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/tokenizer/chat/jinja/json.h"
#include "services/router/http/chat_body.h"
#include "services/router/http/generate.h"
#include "services/router/http/json_input.h"
#include "services/router/http/openai_answer.h"
#include "services/router/http/request_prompt.h"
#include "services/router/http/request_sampling.h"
#include "services/router/http/request_structure.h"

namespace baton::router {
namespace {

struct GenerateBody {
  PromptList prompts;
  std::vector<GenerateCall> calls;  // One per prompt, without it.
  int64_t n = 1;
  std::vector<std::string> ids;  // As the client gave them.
};

absl::StatusOr<PromptList> ReadText(Json& object) {
  const Fields fields(object);
  const bool text = fields.Find("text") != nullptr;
  if (text && fields.Find("input_ids") != nullptr) {
    return InvalidField("input_ids", "is given beside text; give one of the two");
  }
  return ReadPrompts(object, text ? "text" : "input_ids");
}

absl::Status ReadLogprobs(const Fields& fields, GenerateCall& call, GeneratePlan& plan) {
  BATON_ASSIGN_OR_RETURN(const auto wanted, fields.Bool("return_logprob"));
  BATON_ASSIGN_OR_RETURN(const auto start, fields.Integer("logprob_start_len"));
  BATON_ASSIGN_OR_RETURN(const auto top, fields.Integer("top_logprobs_num"));
  BATON_ASSIGN_OR_RETURN(const auto text, fields.Bool("return_text_in_logprobs"));
  plan.logprobs = wanted.value_or(false);
  plan.text_in_logprobs = text.value_or(false);
  plan.logprob_start = start.value_or(-1);
  if (plan.logprob_start < -1) {
    return InvalidField("logprob_start_len",
                        absl::StrCat("must be -1 or more, is ", plan.logprob_start));
  }
  call.names.top_logprobs = "top_logprobs_num";
  call.sampling.set_logprobs(plan.logprobs);
  call.sampling.set_prompt_logprobs(plan.logprobs && plan.logprob_start >= 0);
  // Clients send the number whether or not they want any.
  return SetTopLogprobs(plan.logprobs ? top.value_or(0) : 0, "top_logprobs_num", call.sampling);
}

// The texts of sampling_params, or of each of a list, with their keys in order: empty where no
// schema is an object.
absl::StatusOr<std::vector<std::string>> OrderedParams(std::string_view body, const Json& params) {
  std::vector<std::string> texts(params.is_array() ? params.size() : 1);
  const auto has_schema = [](const Json& one) {
    return one.is_object() && one.contains("json_schema") && one["json_schema"].is_object();
  };
  const bool any = params.is_array() ? std::any_of(params.begin(), params.end(), has_schema)
                                     : has_schema(params);
  if (!any) return texts;
  BATON_ASSIGN_OR_RETURN(const jinja::Value ordered,
                         jinja::ParseJsonValue(body, jinja::Origin::kClient, {"sampling_params"}));
  const jinja::Value& given = *ordered.dict().Find("sampling_params");
  for (size_t i = 0; i < texts.size(); ++i) {
    const jinja::Value& one = params.is_array() ? given.items()[i] : given;
    BATON_ASSIGN_OR_RETURN(texts[i], JsonAsWritten(one));
  }
  return texts;
}

// One object for all prompts, or a list with one for each.
absl::Status ReadParams(std::string_view body_text, const Fields& fields, UnknownFields unknown,
                        const GenerateCall& common, GenerateBody& body) {
  static const auto* none = new Json(Json::object());
  const Json* params = fields.Find("sampling_params");
  if (params == nullptr) params = none;
  const size_t count = body.prompts.prompts.size();
  if (params->is_array() && params->size() != count) {
    return InvalidField("sampling_params",
                        absl::StrCat("has ", params->size(), " entries for ", count, " prompts"));
  }
  BATON_ASSIGN_OR_RETURN(const std::vector<std::string> ordered, OrderedParams(body_text, *params));
  for (size_t i = 0; i < count; ++i) {
    const Json& own = params->is_array() ? (*params)[i] : *params;
    if (!own.is_object()) return fields.Wrong("sampling_params", "an object or a list of objects");
    const Fields sampling(own, "sampling_params.");
    GenerateCall call = common;
    BATON_RETURN_IF_ERROR(CheckFields(sampling, SamplingParamsFields(), unknown, call.warnings));
    BATON_RETURN_IF_ERROR(ReadSampling(sampling, call));
    BATON_RETURN_IF_ERROR(ReadStructure(ordered[params->is_array() ? i : 0], sampling, call));
    BATON_ASSIGN_OR_RETURN(const int64_t n, ReadCount(sampling, "n", 1));
    if (i > 0 && n != body.n) {
      return InvalidField("sampling_params.n", "must be the same for all prompts");
    }
    body.n = n;
    body.calls.push_back(std::move(call));
  }
  return absl::OkStatus();
}

absl::Status ReadIds(const Fields& fields, GenerateBody& body) {
  BATON_ASSIGN_OR_RETURN(auto ids, fields.Strings("rid"));
  if (!ids.has_value()) return absl::OkStatus();
  const size_t count = body.prompts.prompts.size();
  if (ids->size() != count && ids->size() != 1) {
    return InvalidField("rid", absl::StrCat("has ", ids->size(), " ids for ", count, " prompts"));
  }
  body.ids = *std::move(ids);
  return absl::OkStatus();
}

absl::StatusOr<GenerateBody> ReadBody(std::string_view body_text, Json& object,
                                      UnknownFields unknown, std::string_view timeout,
                                      GeneratePlan& plan) {
  const Fields fields(object);
  GenerateBody body;
  GenerateCall common;
  common.endpoint = Endpoint::kGenerate;
  BATON_RETURN_IF_ERROR(CheckFields(fields, GenerateFields(), unknown, common.warnings));
  BATON_ASSIGN_OR_RETURN(const auto model, fields.String("model"));
  common.model = model.value_or("");
  BATON_ASSIGN_OR_RETURN(body.prompts, ReadText(object));
  common.names.prompt = fields.Find("text") != nullptr ? "text" : "input_ids";
  BATON_ASSIGN_OR_RETURN(common.timeout_ms, ReadTimeoutMs(fields, timeout));
  BATON_ASSIGN_OR_RETURN(common.cache_salt, ReadCacheSalt(fields));
  BATON_ASSIGN_OR_RETURN(common.priority, ReadPriority(fields));
  BATON_ASSIGN_OR_RETURN(const auto stream, fields.Bool("stream"));
  plan.stream = stream.value_or(false);
  BATON_RETURN_IF_ERROR(ReadLogprobs(fields, common, plan));
  BATON_RETURN_IF_ERROR(ReadParams(body_text, fields, unknown, common, body));
  BATON_RETURN_IF_ERROR(ReadIds(fields, body));
  const size_t calls = body.prompts.prompts.size() * static_cast<size_t>(body.n);
  if (calls > kMaxCallsPerAnswer) {
    return InvalidField("sampling_params.n",
                        absl::StrCat("asks for ", calls, " texts, more than the ",
                                     kMaxCallsPerAnswer, " of one request"));
  }
  return body;
}

// The id of call `i` of the prompt's `n`.
std::string IdOf(const GenerateBody& body, const std::string& answer_id, size_t prompt, int64_t i) {
  const size_t count = body.prompts.prompts.size();
  if (count == 1 && body.n == 1) return answer_id;
  if (body.ids.size() == count && body.n == 1) return body.ids[prompt];
  return absl::StrCat(answer_id, "-",
                      prompt * static_cast<size_t>(body.n) + static_cast<size_t>(i));
}

}  // namespace

absl::StatusOr<GeneratePlan> PlanGenerate(const Gateway& gateway, std::string_view body_text,
                                          UnknownFields unknown, std::string_view timeout,
                                          const std::string& request_id) {
  BATON_ASSIGN_OR_RETURN(Json object, ParseObject(body_text));
  GeneratePlan plan;
  BATON_ASSIGN_OR_RETURN(GenerateBody body, ReadBody(body_text, object, unknown, timeout, plan));
  plan.id = body.ids.size() == 1 ? body.ids[0] : request_id;
  plan.is_list = body.prompts.is_list || body.n > 1;
  for (size_t prompt = 0; prompt < body.calls.size(); ++prompt) {
    GenerateCall& call = body.calls[prompt];
    call.prompt = std::move(body.prompts.prompts[prompt]);
    BATON_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, gateway.Encode(call));
    call.prompt = TokenIdsPrompt(ids.begin(), ids.end());
    Prompt whole = std::exchange(call.prompt, {});
    for (int64_t i = 0; i < body.n; ++i) {
      GenerateCall& copy = plan.calls.emplace_back(call);
      if (i + 1 < body.n) copy.prompt = whole;
      copy.request_id = IdOf(body, plan.id, prompt, i);
      if (call.sampling.has_seed()) {
        copy.sampling.set_seed(CandidateSeed(call.sampling.seed(), static_cast<int>(i)));
      }
      plan.shown.push_back({copy.request_id, static_cast<int>(ids.size())});
    }
    plan.calls.back().prompt = std::move(whole);
  }
  return plan;
}

}  // namespace baton::router
