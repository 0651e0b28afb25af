#include "services/router/grpc/inference_service.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/rpc/grpc_status.h"
#include "services/router/bearer.h"
#include "services/router/grpc/call_from_proto.h"
#include "services/router/grpc/generate_answers.h"

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
