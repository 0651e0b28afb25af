#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "services/router/http/endpoints.h"
#include "services/router/http/request_prompt.h"
#include "services/router/http/respond.h"
#include "services/router/validate.h"

namespace baton::router {
namespace {

constexpr size_t kProbesLimit = 256;  // Waiting for one generation.
constexpr int64_t kProbeTimeoutMs = 20'000;

struct Tokens {
  std::vector<std::vector<int32_t>> lists;
  bool is_list = false;
};

absl::StatusOr<Tokens> EncodeAll(const Gateway& gateway, std::string_view body,
                                 const Fields& fields, UnknownFields unknown) {
  Tokens tokens;
  BATON_ASSIGN_OR_RETURN(const auto special, fields.Bool("add_special_tokens"));
  if (fields.Find("messages") != nullptr) {
    GenerateCall call;
    call.names.prompt = "messages";
    BATON_ASSIGN_OR_RETURN(call.prompt, ReadMessages(body, fields, unknown, call.warnings));
    BATON_ASSIGN_OR_RETURN(std::vector<int32_t> ids, gateway.Encode(call));
    tokens.lists.push_back(std::move(ids));
    return tokens;
  }
  const Json* prompt = fields.Find("prompt");
  tokens.is_list = prompt != nullptr && prompt->is_array();
  BATON_ASSIGN_OR_RETURN(const auto texts, fields.Strings("prompt"));
  if (!texts.has_value()) return fields.Wrong("prompt", "a string or a list of strings");
  if (texts->size() > kMaxCallsPerAnswer) {
    return InvalidField("prompt", absl::StrCat("must be at most ", kMaxCallsPerAnswer, " texts"));
  }
  for (const std::string& text : *texts) {
    BATON_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                           gateway.Tokenize(text, special.value_or(true)));
    tokens.lists.push_back(std::move(ids));
  }
  return tokens;
}

absl::Status CheckModelField(const Gateway& gateway, const Fields& fields) {
  BATON_ASSIGN_OR_RETURN(const auto model, fields.String("model"));
  const std::string& served = gateway.model_info().served_model_name();
  return CheckModelName(model.value_or(""), served);
}

// Token ids as the client wrote them, narrowed; the vocabulary is checked by the gateway.
absl::StatusOr<std::vector<int32_t>> Narrow(const Json& list) {
  if (!list.is_array()) return InvalidField("tokens", "must be a list of token ids");
  std::vector<int32_t> ids;
  for (const Json& element : list) {
    BATON_ASSIGN_OR_RETURN(const int64_t id, IntegerValue(element, "tokens"));
    if (id < 0 || id > INT32_MAX) {
      return InvalidField("tokens", absl::StrCat(id, " is outside the vocabulary"));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

}  // namespace

absl::StatusOr<Json> Tokenize(const Gateway& gateway, const std::string& body,
                              UnknownFields unknown) {
  BATON_ASSIGN_OR_RETURN(const Json object, ParseObject(body));
  const Fields fields(object);
  std::vector<std::string> warnings;
  BATON_RETURN_IF_ERROR(CheckFields(fields, TokenizeFields(), unknown, warnings));
  BATON_RETURN_IF_ERROR(CheckModelField(gateway, fields));
  BATON_ASSIGN_OR_RETURN(const auto strings, fields.Bool("return_token_strs"));
  BATON_ASSIGN_OR_RETURN(const Tokens tokens, EncodeAll(gateway, body, fields, unknown));
  Json lists = Json::array();
  Json counts = Json::array();
  Json texts = Json::array();
  for (const std::vector<int32_t>& ids : tokens.lists) {
    lists.push_back(ids);
    counts.push_back(ids.size());
    Json text = Json::array();
    for (const int32_t id : ids) {
      if (!strings.value_or(false)) break;
      BATON_ASSIGN_OR_RETURN(const std::string one, gateway.Detokenize({id}, false));
      text.push_back(one);
    }
    texts.push_back(std::move(text));
  }
  const auto shown = [&](Json& all) { return tokens.is_list ? all : all[0]; };
  Json answer = {{"tokens", shown(lists)},
                 {"count", shown(counts)},
                 {"max_model_len", gateway.largest_request_tokens()}};
  if (strings.value_or(false)) answer["token_strs"] = shown(texts);
  return answer;
}

absl::StatusOr<Json> Detokenize(const Gateway& gateway, const std::string& body,
                                UnknownFields unknown) {
  BATON_ASSIGN_OR_RETURN(const Json object, ParseObject(body));
  const Fields fields(object);
  std::vector<std::string> warnings;
  BATON_RETURN_IF_ERROR(CheckFields(fields, DetokenizeFields(), unknown, warnings));
  BATON_RETURN_IF_ERROR(CheckModelField(gateway, fields));
  BATON_ASSIGN_OR_RETURN(const auto skip, fields.Bool("skip_special_tokens"));
  const Json* tokens = fields.Find("tokens");
  if (tokens == nullptr || !tokens->is_array())
    return fields.Wrong("tokens", "a list of token ids");
  const bool is_list = !tokens->empty() && (*tokens)[0].is_array();
  if (is_list && tokens->size() > kMaxCallsPerAnswer) {
    return InvalidField("tokens", absl::StrCat("must be at most ", kMaxCallsPerAnswer, " lists"));
  }
  Json texts = Json::array();
  for (size_t i = 0; i < (is_list ? tokens->size() : 1); ++i) {
    BATON_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                           Narrow(is_list ? (*tokens)[i] : *tokens));
    BATON_ASSIGN_OR_RETURN(const std::string text, gateway.Detokenize(ids, skip.value_or(true)));
    texts.push_back(text);
  }
  const Json& shown = is_list ? texts : texts[0];
  return Json{{"text", shown}, {"prompt", shown}};  // SGLang's name and vLLM's.
}

void Abort(Gateway& gateway, const RunningAnswers& running, const std::string& body,
           UnknownFields unknown, const std::shared_ptr<HttpExchange>& exchange) {
  const absl::StatusOr<Json> object = ParseObject(body);
  if (!object.ok()) return RespondError(*exchange, object.status());
  const Fields fields(*object);
  std::vector<std::string> warnings;
  const absl::Status known = CheckFields(fields, AbortFields(), unknown, warnings);
  if (!known.ok()) return RespondError(*exchange, known);
  const auto all = fields.Bool("abort_all");
  if (!all.ok()) return RespondError(*exchange, all.status());
  if (all->value_or(false)) {
    return gateway.AbortAll([exchange](int aborted) {
      RespondJson(*exchange, {{"aborted", aborted}});
    });
  }
  const auto id = fields.String("rid");
  if (!id.ok()) return RespondError(*exchange, id.status());
  if (!id->has_value() || (*id)->empty()) {
    return RespondError(*exchange, fields.Wrong("rid", "the id of a request"));
  }
  const std::vector<std::string> requests = running.RequestsOf(**id);
  struct Tally {
    std::atomic<size_t> open;
    std::atomic<int> aborted{0};
  };
  auto tally = std::make_shared<Tally>();
  tally->open = requests.size();
  for (const std::string& request : requests) {
    gateway.Abort(request, [tally, exchange](const absl::Status& status) {
      if (status.ok()) ++tally->aborted;
      if (--tally->open > 0) return;
      RespondJson(*exchange, {{"aborted", tally->aborted.load()}});
    });
  }
}

class GenerationProbe::Sink : public ResponseSink {
 public:
  explicit Sink(std::shared_ptr<GenerationProbe> probe) : probe_(std::move(probe)) {}
  void OnPromptTokens(std::vector<TokenPiece>) override {}
  void OnTokens(TextPiece) override {}
  void OnFinished(Outcome) override { probe_->Answer(absl::OkStatus()); }
  void OnError(absl::Status status) override { probe_->Answer(status); }

 private:
  const std::shared_ptr<GenerationProbe> probe_;
};

void GenerationProbe::Ask(std::shared_ptr<HttpExchange> exchange) {
  {
    MutexLock lock(&mutex_);
    if (waiting_.size() >= kProbesLimit) {
      return RespondError(*exchange, absl::UnavailableError("too many probes are waiting"));
    }
    waiting_.push_back(std::move(exchange));
    if (waiting_.size() > 1) return;  // One is on its way.
  }
  GenerateCall call;
  call.request_id = absl::StrCat("health-", RandomHex(8));
  call.prompt = TokenIdsPrompt{0};
  call.sampling.set_temperature(0);
  call.sampling.set_max_tokens(1);
  call.timeout_ms = kProbeTimeoutMs;
  const auto submitted =
      gateway_.Submit(std::move(call), std::make_shared<Sink>(shared_from_this()));
  if (!submitted.ok()) Answer(submitted.status());
}

void GenerationProbe::Answer(const absl::Status& status) {
  std::vector<std::shared_ptr<HttpExchange>> waiting;
  {
    MutexLock lock(&mutex_);
    waiting.swap(waiting_);
  }
  HttpResponse response;
  response.status = status.ok() ? 200 : 503;
  response.body = Dump(
      {{"status", status.ok() ? "ok" : "unavailable"}, {"reason", std::string(status.message())}});
  for (const auto& exchange : waiting) exchange->Respond(response);
}

}  // namespace baton::router
