#include "services/router/grpc/inference_service.h"

#include <string>
#include <string_view>
#include <vector>

#include "common/rpc/grpc_status.h"
#include "services/router/bearer.h"
#include "services/router/grpc/call_from_proto.h"
#include "services/router/grpc/generate_calls.h"

namespace baton::router {
namespace {

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

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  const grpc::Status allowed = CheckAuthorization(*context, *api_keys_);
  if (!allowed.ok()) return new RefusedStream(allowed);
  return GenerateStream::Start(gateway_, CallFromProto(gateway_, *context, *request));
}

grpc::ServerUnaryReactor* InferenceService::GenerateOnce(grpc::CallbackServerContext* context,
                                                         const v1::GenerateRequest* request,
                                                         v1::WholeAnswer* response) {
  const grpc::Status allowed = CheckAuthorization(*context, *api_keys_);
  if (!allowed.ok()) return Refuse(context, allowed);
  return WholeAnswerCall::Start(gateway_, CallFromProto(gateway_, *context, *request), response);
}

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::Chat(
    grpc::CallbackServerContext* context, const v1::ChatRequest* request) {
  const grpc::Status allowed = CheckAuthorization(*context, *api_keys_);
  if (!allowed.ok()) return new RefusedStream(allowed);
  return GenerateStream::Start(gateway_, CallFromProto(gateway_, *context, *request));
}

grpc::ServerUnaryReactor* InferenceService::ChatOnce(grpc::CallbackServerContext* context,
                                                     const v1::ChatRequest* request,
                                                     v1::WholeAnswer* response) {
  const grpc::Status allowed = CheckAuthorization(*context, *api_keys_);
  if (!allowed.ok()) return Refuse(context, allowed);
  return WholeAnswerCall::Start(gateway_, CallFromProto(gateway_, *context, *request), response);
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
  const auto ids = gateway_.Tokenize(request->text(), request->add_special_tokens());
  if (ids.ok()) response->mutable_token_ids()->Assign(ids->begin(), ids->end());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(rpc::ToGrpc(ids.status()));
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const v1::DetokenizeRequest* request,
                                                       v1::DetokenizeResponse* response) {
  const grpc::Status allowed = CheckAuthorization(*context, *api_keys_);
  if (!allowed.ok()) return Refuse(context, allowed);
  const std::vector<int32_t> ids(request->token_ids().begin(), request->token_ids().end());
  const auto text = gateway_.Detokenize(ids, request->skip_special_tokens());
  if (text.ok()) response->set_text(*text);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(rpc::ToGrpc(text.status()));
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
