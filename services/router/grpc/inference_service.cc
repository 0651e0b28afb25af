#include "services/router/grpc/inference_service.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "common/rpc/grpc_status.h"
#include "common/tracing/grpc_propagation.h"
#include "services/router/bearer.h"
#include "services/router/grpc/generate_answers.h"
#include "services/router/http/json_input.h"
#include "services/router/http/request_prompt.h"

namespace baton::router {
namespace {

constexpr size_t kRequestBytes = 4096;  // What one holds beside its message.

// So many bytes of ids are checked and copied sooner than another thread is woken.
constexpr size_t kQuickBytes = size_t{64} << 10;
bool HasOnlyIds(const v1::GenerateRequest& request) { return request.has_token_ids(); }
bool HasOnlyIds(const v1::ChatRequest&) { return false; }

Endpoint EndpointOf(const v1::GenerateRequest&) { return Endpoint::kGenerate; }
Endpoint EndpointOf(const v1::ChatRequest&) { return Endpoint::kChatCompletions; }

class RefusedStream : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  explicit RefusedStream(const grpc::Status& status) { Finish(status); }

 private:
  void OnDone() override { delete this; }
};

grpc::ServerUnaryReactor* Refuse(grpc::CallbackServerContext* context, const grpc::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

// ---- Clients' messages as calls of the gateway ----

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

// With the shorter of the request's timeout and the deadline of `context`, its trace if `gateway`
// traces, and an id chosen if the request has none. Nothing is checked here that the gateway
// checks; what a conversation may be is said by the HTTP front's reader, which both fronts share.
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

// A chat that cannot be one is counted as refused and is INVALID_ARGUMENT.
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

}  // namespace

absl::Status InferenceService::Read(size_t bytes, bool slow, std::function<void()> read) {
  // Small requests count as well.
  const size_t charged = bytes + kRequestBytes;
  if (waiting_bytes_.fetch_add(charged) + charged > max_waiting_bytes_) {
    waiting_bytes_ -= charged;
    return WithLeg(Overloaded(absl::ResourceExhaustedError(
                       "the router has as many requests to read as it takes; try again later")),
                   "router", "");
  }
  pool_.Submit(std::max(bytes, slow ? WorkerPool::kLargeBytes + 1 : 0),
               [this, charged, read = std::move(read)] {
                 read();
                 waiting_bytes_ -= charged;
               });
  return absl::OkStatus();
}

template <typename Call, typename Request>
void InferenceService::Begin(const std::shared_ptr<Call>& call,
                             grpc::CallbackServerContext* context, const Request* request) {
  const auto read = [this, call, context, request] {
    if (context->IsCancelled()) return call->Begin(absl::CancelledError());
    call->Begin(CallFromProto(gateway_, *context, *request));
  };
  const size_t bytes = request->ByteSizeLong();
  const bool slow = request->sampling().has_structure();
  if (HasOnlyIds(*request) && !slow && bytes <= kQuickBytes) return read();
  const absl::Status taken = Read(bytes, slow, read);
  if (taken.ok()) return;
  gateway_.CountRefused(EndpointOf(*request), {}, taken);
  call->Begin(taken);
}

template <typename Request>
grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::Stream(
    grpc::CallbackServerContext* context, const Request* request) {
  const grpc::Status allowed = CheckAuthorization(*context, *api_keys_);
  if (!allowed.ok()) return new RefusedStream(allowed);
  const auto stream = GenerateStream::Open(gateway_);
  Begin(stream, context, request);
  return stream.get();
}

template <typename Request>
grpc::ServerUnaryReactor* InferenceService::Whole(grpc::CallbackServerContext* context,
                                                  const Request* request,
                                                  v1::WholeAnswer* response) {
  const grpc::Status allowed = CheckAuthorization(*context, *api_keys_);
  if (!allowed.ok()) return Refuse(context, allowed);
  const auto call = WholeAnswerCall::Open(gateway_, response);
  Begin(call, context, request);
  return call.get();
}

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  return Stream(context, request);
}

grpc::ServerUnaryReactor* InferenceService::GenerateOnce(grpc::CallbackServerContext* context,
                                                         const v1::GenerateRequest* request,
                                                         v1::WholeAnswer* response) {
  return Whole(context, request, response);
}

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::Chat(
    grpc::CallbackServerContext* context, const v1::ChatRequest* request) {
  return Stream(context, request);
}

grpc::ServerUnaryReactor* InferenceService::ChatOnce(grpc::CallbackServerContext* context,
                                                     const v1::ChatRequest* request,
                                                     v1::WholeAnswer* response) {
  return Whole(context, request, response);
}

grpc::ServerUnaryReactor* InferenceService::Abort(grpc::CallbackServerContext* context,
                                                  const v1::AbortRequest* request,
                                                  v1::AbortResponse*) {
  const grpc::Status allowed = CheckAuthorization(*context, *api_keys_);
  if (!allowed.ok()) return Refuse(context, allowed);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  gateway_.Abort(request->request_id(),
                 [reactor](const absl::Status& status) { reactor->Finish(rpc::ToGrpc(status)); });
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::GetModelInfo(grpc::CallbackServerContext* context,
                                                         const v1::GetModelInfoRequest*,
                                                         v1::GetModelInfoResponse* response) {
  const grpc::Status allowed = CheckAuthorization(*context, *api_keys_);
  if (!allowed.ok()) return Refuse(context, allowed);
  *response = gateway_.model_info();
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const v1::TokenizeRequest* request,
                                                     v1::TokenizeResponse* response) {
  const grpc::Status allowed = CheckAuthorization(*context, *api_keys_);
  if (!allowed.ok()) return Refuse(context, allowed);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::Status taken =
      Read(request->ByteSizeLong(), /*slow=*/false, [this, request, response, reactor] {
        const auto ids = gateway_.Tokenize(request->text(), request->add_special_tokens());
        if (ids.ok()) response->mutable_token_ids()->Assign(ids->begin(), ids->end());
        reactor->Finish(rpc::ToGrpc(ids.status()));
      });
  if (!taken.ok()) reactor->Finish(rpc::ToGrpc(taken));
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const v1::DetokenizeRequest* request,
                                                       v1::DetokenizeResponse* response) {
  const grpc::Status allowed = CheckAuthorization(*context, *api_keys_);
  if (!allowed.ok()) return Refuse(context, allowed);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::Status taken =
      Read(request->ByteSizeLong(), /*slow=*/false, [this, request, response, reactor] {
        const std::vector<int32_t> ids(request->token_ids().begin(), request->token_ids().end());
        const auto text = gateway_.Detokenize(ids, request->skip_special_tokens());
        if (text.ok()) response->set_text(*text);
        reactor->Finish(rpc::ToGrpc(text.status()));
      });
  if (!taken.ok()) reactor->Finish(rpc::ToGrpc(taken));
  return reactor;
}

grpc::Status CheckAuthorization(const grpc::CallbackServerContext& context, SecretSet& api_keys) {
  if (api_keys.asks_for_nothing()) return grpc::Status::OK;
  const auto& metadata = context.client_metadata();
  const auto given = metadata.find("authorization");
  if (given != metadata.end()) {
    const std::string_view key = BearerKey({given->second.data(), given->second.size()});
    if (api_keys.Accepts(key)) return grpc::Status::OK;
  }
  return {grpc::StatusCode::UNAUTHENTICATED,
          "missing or wrong API key: send the metadata 'authorization: Bearer KEY'"};
}

}  // namespace baton::router
