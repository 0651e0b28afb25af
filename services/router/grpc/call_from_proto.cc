#include "services/router/grpc/call_from_proto.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "common/tracing/grpc_propagation.h"
#include "services/router/bearer.h"
#include "services/router/http/json_input.h"
#include "services/router/http/request_prompt.h"

namespace baton::router {
namespace {

// The shorter of the request's own timeout and the call's deadline; 0: neither.
int64_t TimeoutMs(const grpc::CallbackServerContext& context, int64_t timeout_ms) {
  const auto deadline = context.deadline();
  if (timeout_ms < 0 || deadline == std::chrono::system_clock::time_point::max()) {
    return timeout_ms;
  }
  const int64_t remaining_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                                   deadline - std::chrono::system_clock::now())
                                   .count();
  // gRPC's "no deadline" comes back as a far one.
  if (remaining_ms > int64_t{1000} * 86400 * 365) return timeout_ms;
  const int64_t bounded_ms = std::max<int64_t>(1, remaining_ms);
  return timeout_ms == 0 ? bounded_ms : std::min(timeout_ms, bounded_ms);
}

// The metadata x-request-id is for tracing, as the header over HTTP: it is part of the id, which is
// another one for every call. An id that could not stand in logs is left out.
std::string NewRequestId(const grpc::CallbackServerContext& context) {
  constexpr size_t kMaxBytes = 100;
  const auto given = context.client_metadata().find("x-request-id");
  if (given == context.client_metadata().end()) return "req-" + RandomHex(12);
  const std::string id(given->second.data(), given->second.size());
  const bool fits = !id.empty() && id.size() <= kMaxBytes &&
                    std::all_of(id.begin(), id.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  return fits ? absl::StrCat("req-", id, "-", RandomHex(4)) : "req-" + RandomHex(12);
}

// gRPC has the names of metadata in lower case.
std::string MetadataOf(const grpc::CallbackServerContext& context, std::string_view header) {
  const std::string name = absl::AsciiStrToLower(std::string(header));
  const auto given = context.client_metadata().find(name);
  if (name.empty() || given == context.client_metadata().end()) return "";
  return {given->second.data(), given->second.size()};
}

// What both kinds of request have. Request: v1::GenerateRequest or v1::ChatRequest.
template <typename Request>
GenerateCall CommonCall(const Gateway& gateway, const grpc::CallbackServerContext& context,
                        const Request& request) {
  GenerateCall call;
  // Messages carry the id from the first on, and the first may come before Submit returns.
  call.request_id = request.request_id().empty() ? NewRequestId(context) : request.request_id();
  call.model = request.model();
  if (request.has_truncate_prompt_tokens()) {
    call.truncate_prompt_tokens = request.truncate_prompt_tokens();
  }
  call.sampling = request.sampling();
  call.text.skip_special_tokens = !request.keep_special_tokens();
  call.text.include_stop = request.include_stop();
  call.timeout_ms = TimeoutMs(context, request.timeout_ms());
  call.cache_salt = request.cache_salt();
  call.priority = request.priority();
  call.routing_key = MetadataOf(context, gateway.hash_header());
  call.tenant = TenantOf(MetadataOf(context, gateway.tenant_header()), gateway.asks_for_keys(),
                         BearerKey(MetadataOf(context, "authorization")));
  if (gateway.tracer() != nullptr) call.caller = tracing::Extract(context);
  return call;
}

absl::StatusOr<Json> MessageJson(const v1::ChatMessage& message, const std::string& path) {
  if (message.has_content() && message.parts_size() > 0) {
    return InvalidField(absl::StrCat(path, ".parts"), "stand beside content; give one of the two");
  }
  Json json = {{"role", message.role()}, {"content", nullptr}};
  if (message.has_content()) json["content"] = message.content();
  if (message.parts_size() > 0) json["content"] = Json::array();
  for (const v1::ContentPart& part : message.parts()) {
    json["content"].push_back({{"type", part.type()}, {"text", part.text()}});
  }
  if (!message.name().empty()) json["name"] = message.name();
  return json;
}

// As the body of /v1/chat/completions has it, so that one reader decides what a conversation is.
absl::StatusOr<Json> ConversationJson(const v1::ChatRequest& request) {
  Json messages = Json::array();
  for (const v1::ChatMessage& message : request.messages()) {
    BATON_ASSIGN_OR_RETURN(Json json,
                           MessageJson(message, absl::StrCat("messages[", messages.size(), "]")));
    messages.push_back(std::move(json));
  }
  Json body = {{"messages", std::move(messages)}};
  if (request.has_add_generation_prompt()) {
    body["add_generation_prompt"] = request.add_generation_prompt();
  }
  return body;
}

absl::StatusOr<ChatPrompt> ConversationOf(const v1::ChatRequest& request,
                                          std::vector<std::string>& warnings) {
  BATON_ASSIGN_OR_RETURN(const Json body, ConversationJson(request));
  return ReadMessages(body.dump(), Fields(body), UnknownFields::kRefuse, warnings);
}

}  // namespace

GenerateCall CallFromProto(const Gateway& gateway, const grpc::CallbackServerContext& context,
                           const v1::GenerateRequest& request) {
  GenerateCall call = CommonCall(gateway, context, request);
  call.endpoint = Endpoint::kGenerate;
  if (request.has_token_ids()) {
    call.prompt =
        TokenIdsPrompt(request.token_ids().ids().begin(), request.token_ids().ids().end());
  } else {
    call.prompt = request.text();
  }
  if (request.has_add_special_tokens()) call.add_special_tokens = request.add_special_tokens();
  return call;
}

absl::StatusOr<GenerateCall> CallFromProto(Gateway& gateway,
                                           const grpc::CallbackServerContext& context,
                                           const v1::ChatRequest& request) {
  GenerateCall call = CommonCall(gateway, context, request);
  call.endpoint = Endpoint::kChatCompletions;
  call.names.prompt = "messages";
  absl::StatusOr<ChatPrompt> conversation = ConversationOf(request, call.warnings);
  if (!conversation.ok()) {
    gateway.CountRefused(call.endpoint, call.caller, conversation.status());
    return conversation.status();
  }
  call.prompt = *std::move(conversation);
  return call;
}

}  // namespace baton::router
