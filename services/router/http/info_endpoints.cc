#include <algorithm>
#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "services/router/http/endpoints.h"
#include "services/router/http/openai_format.h"
#include "services/router/http/respond.h"
#include "services/router/validate.h"

namespace baton::router {
namespace {

std::string EscapeHtml(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

Json ValueOf(const v1::Options& options, const google::protobuf::FieldDescriptor& field) {
  const google::protobuf::Reflection& reflection = *options.GetReflection();
  switch (field.cpp_type()) {
    case google::protobuf::FieldDescriptor::CPPTYPE_INT64:
      return reflection.GetInt64(options, &field);
    case google::protobuf::FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(options, &field);
    case google::protobuf::FieldDescriptor::CPPTYPE_STRING:
      return reflection.GetString(options, &field);
    default:
      return nullptr;
  }
}

void RespondProbe(HttpExchange& exchange, bool good, const std::string& reason) {
  HttpResponse response;
  response.status = good ? 200 : 503;
  response.body = Dump({{"status", good ? "ok" : "unavailable"}, {"reason", reason}});
  exchange.Respond(std::move(response));
}

constexpr char kPage[] = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Baton</title></head>
<body style="font-family: sans-serif; max-width: 40em; margin: 2em auto">
<h1>Baton $VERSION</h1>
<p>$STATE</p>
<ul>
<li>OpenAI's API: <a href="/v1/models">/v1/models</a>, POST /v1/completions, POST /v1/chat/completions,
POST /v1/responses</li>
<li>Anthropic's: POST /v1/messages, POST /v1/messages/count_tokens</li>
<li>SGLang's: POST /generate, <a href="/server_info">/server_info</a>,
<a href="/get_model_info">/get_model_info</a></li>
<li>Tokens: POST /tokenize, POST /detokenize</li>
<li>For operators: <a href="/health">/health</a>, <a href="/readiness">/readiness</a>,
<a href="/health_generate">/health_generate</a>, <a href="/metrics">/metrics</a></li>
</ul>
<p>What each takes and answers is in services/router/http/README.md of the source tree; options are in
docs/options.md, metrics in docs/metrics.md.</p>
</body></html>
)";

}  // namespace

Json SettingsOf(const v1::Options& options) {
  Json settings = Json::object();
  const google::protobuf::Descriptor& descriptor = *options.GetDescriptor();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *descriptor.field(i);
    const v1::OptionSpec& spec = field.options().GetExtension(v1::spec);
    const bool ours = std::find(spec.roles().begin(), spec.roles().end(), v1::OptionSpec::ROUTER) !=
                      spec.roles().end();
    if (ours && !spec.secret()) settings[field.name()] = ValueOf(options, field);
  }
  return settings;
}

InfoEndpoints::InfoEndpoints(const Gateway& gateway, const v1::Options& options, bool guarded)
    : gateway_(gateway),
      settings_(SettingsOf(options)),
      model_path_(options.model_path()),
      tokenizer_path_(options.tokenizer_path().empty() ? options.model_path()
                                                       : options.tokenizer_path()),
      guarded_(guarded),
      started_s_(std::time(nullptr)) {}

void InfoEndpoints::Root(HttpExchange& exchange) const {
  const v1::GetModelInfoResponse& model = gateway_.model_info();
  const router::Readiness readiness = gateway_.readiness();
  std::string state = readiness.ready ? "Ready." : absl::StrCat("Not ready: ", readiness.reason);
  if (!guarded_) {
    state = absl::StrCat("Serves ", model.served_model_name(), " (", model.model_type(),
                         ", context of ", model.max_context_tokens(), " tokens). ", state);
  }
  RespondText(exchange, "text/html; charset=utf-8",
              absl::StrReplaceAll(kPage, {{"$VERSION", EscapeHtml(model.version())},
                                          {"$STATE", EscapeHtml(state)}}));
}

void InfoEndpoints::Version(HttpExchange& exchange) const {
  RespondJson(exchange, {{"version", gateway_.model_info().version()}});
}

void InfoEndpoints::ServerInfo(HttpExchange& exchange) const {
  const v1::GetModelInfoResponse& model = gateway_.model_info();
  const router::Readiness readiness = gateway_.readiness();
  Json info = settings_;
  info["version"] = model.version();
  info["served_model_name"] = model.served_model_name();
  info["model_type"] = model.model_type();
  info["vocab_size"] = model.vocab_size();
  info["max_context_tokens"] = model.max_context_tokens();
  info["started"] = started_s_;
  info["ready"] = readiness.ready;
  info["reason"] = readiness.reason;
  // SGLang's clients look at the first entry.
  info["internal_states"] = Json::array({Json::object()});
  RespondJson(exchange, info);
}

void InfoEndpoints::ModelInfo(HttpExchange& exchange) const {
  const v1::GetModelInfoResponse& model = gateway_.model_info();
  RespondJson(exchange, {{"model_path", model_path_},
                         {"tokenizer_path", tokenizer_path_},
                         {"is_generation", true},
                         {"preferred_sampling_params", nullptr},
                         {"served_model_name", model.served_model_name()},
                         {"model_type", model.model_type()},
                         {"max_model_len", gateway_.largest_request_tokens()}});
}

void InfoEndpoints::Models(HttpExchange& exchange) const {
  RespondJson(exchange,
              ModelList(gateway_.model_info(), started_s_, gateway_.largest_request_tokens()));
}

void InfoEndpoints::Model(const std::string& name, HttpExchange& exchange) const {
  const v1::GetModelInfoResponse& model = gateway_.model_info();
  const absl::Status known = CheckModelName(name, model.served_model_name());
  if (!known.ok()) return RespondError(exchange, known);
  RespondJson(exchange, ModelCard(model, started_s_, gateway_.largest_request_tokens()));
}

void InfoEndpoints::Health(HttpExchange& exchange) const {
  const bool alive = gateway_.alive();
  RespondProbe(exchange, alive, alive ? "" : "the router's loop makes no progress");
}

void InfoEndpoints::Readiness(HttpExchange& exchange) const {
  const router::Readiness readiness = gateway_.readiness();
  RespondProbe(exchange, readiness.ready, readiness.reason);
}

void InfoEndpoints::Metrics(HttpExchange& exchange) const {
  RespondText(exchange, "text/plain; version=0.0.4; charset=utf-8", gateway_.ScrapeMetrics());
}

}  // namespace baton::router
