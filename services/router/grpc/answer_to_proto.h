// Converts what sinks receive into clients' messages.
#ifndef SERVICES_ROUTER_GRPC_ANSWER_TO_PROTO_H_
#define SERVICES_ROUTER_GRPC_ANSWER_TO_PROTO_H_

#include <vector>

#include "proto/baton/v1/inference.pb.h"
#include "services/router/gateway.h"

namespace baton::router {

void SetLogprobs(const TokenPiece& token, v1::TokenLogprobs& logprobs);

// Appends a run of the prompt's tokens.
void AddPromptTokens(const std::vector<TokenPiece>& tokens, v1::PromptLogprobs& prompt);

v1::Finished FinishedToProto(Outcome outcome);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_GRPC_ANSWER_TO_PROTO_H_
