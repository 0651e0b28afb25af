#include <ctime>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/router/http/endpoints.h"
#include "services/router/http/messages.h"
#include "services/router/http/request_span.h"
#include "services/router/http/respond.h"
#include "services/router/http/responses.h"
#include "services/router/validate.h"

namespace baton::router {
namespace {

using Exchange = std::shared_ptr<HttpExchange>;

// A request as it is planned, or why it is not.
struct Planned {
  AnswerPlan plan;
  FieldRenames renames;
  bool stream = false;
  Json given;
};

absl::StatusOr<Planned> Plan(const Gateway& gateway, absl::StatusOr<FrontRequest> parsed,
                             const std::string& id) {
  BATON_RETURN_IF_ERROR(parsed.status());
  Planned planned;
  planned.stream = parsed->chat.stream;
  planned.renames = std::move(parsed->renames);
  planned.given = std::move(parsed->given);
  const std::string chosen = parsed->chat.call.request_id;
  absl::StatusOr<AnswerPlan> plan = PlanAnswer(gateway, std::move(parsed->chat),
                                               chosen.empty() ? id : chosen, std::time(nullptr));
  if (!plan.ok()) return planned.renames.Apply(plan.status());
  planned.plan = *std::move(plan);
  return planned;
}

MessageHeader HeaderOf(const AnswerPlan& plan) {
  return {plan.header.id, plan.header.model, static_cast<int64_t>(plan.prompts.front().ids.size())};
}

absl::StatusOr<size_t> Count(const Gateway& gateway, const std::string& body,
                             UnknownFields unknown) {
  BATON_ASSIGN_OR_RETURN(
      const Planned planned,
      Plan(gateway, ParseMessagesRequest(body, unknown, "", /*counts=*/true), "count"));
  BATON_RETURN_IF_ERROR(
      CheckModelName(planned.plan.calls.front().model, gateway.model_info().served_model_name()));
  return planned.plan.prompts.front().ids.size();
}

}  // namespace

void AgentEndpoints::Messages(const HttpRequest& request, const Exchange& exchange) const {
  absl::StatusOr<Planned> planned =
      Plan(gateway_,
           ParseMessagesRequest(request.body, unknown_, request.Header(kTimeoutHeader),
                                /*counts=*/false),
           "msg_" + UniqueId(request));
  if (!planned.ok()) {
    gateway_.CountRefused(Endpoint::kMessages, CallerOf(gateway_, request), planned.status());
    return exchange->Respond(MessagesErrorResponse(planned.status()));
  }
  MessageHeader header = HeaderOf(planned->plan);
  auto form = planned->stream ? MakeMessageStream(std::move(header), exchange)
                              : MakeWholeMessage(std::move(header), exchange);
  Start(request, exchange, std::move(planned->plan), std::move(planned->renames), planned->stream,
        std::move(form));
}

void AgentEndpoints::CountTokens(const HttpRequest& request, const Exchange& exchange) const {
  const absl::StatusOr<size_t> tokens = Count(gateway_, request.body, unknown_);
  if (!tokens.ok()) return exchange->Respond(MessagesErrorResponse(tokens.status()));
  RespondJson(*exchange, {{"input_tokens", *tokens}});
}

void AgentEndpoints::Responses(const HttpRequest& request, const Exchange& exchange) const {
  absl::StatusOr<Planned> planned =
      Plan(gateway_, ParseResponsesRequest(request.body, unknown_, request.Header(kTimeoutHeader)),
           "resp_" + UniqueId(request));
  if (!planned.ok()) {
    gateway_.CountRefused(Endpoint::kResponses, CallerOf(gateway_, request), planned.status());
    return RespondError(*exchange, planned.status());
  }
  const AnswerHeader& shared = planned->plan.header;
  ResponseHeader header = {shared.id, shared.model, shared.created_s, std::move(planned->given)};
  auto form = planned->stream ? MakeResponseStream(std::move(header), exchange)
                              : MakeWholeResponse(std::move(header), exchange);
  Start(request, exchange, std::move(planned->plan), std::move(planned->renames), planned->stream,
        std::move(form));
}

void AgentEndpoints::Start(const HttpRequest& request, const Exchange& exchange, AnswerPlan plan,
                           FieldRenames renames, bool stream,
                           std::unique_ptr<BlockForm> form) const {
  std::vector<GenerateCall> calls = std::move(plan.calls);
  const std::string id = plan.header.id;
  SetKeys(gateway_, request, calls);
  tracing::ActiveSpan span = BeginSpan(gateway_, request, CallerOf(gateway_, request), calls);
  AnswerGroup::Start(
      gateway_, running_, id, std::move(calls),
      MakeBlockWriter(gateway_, std::move(plan), std::move(renames), std::move(form)), stream,
      exchange, std::move(span));
  if (stream) exchange->ExpectEvents(event_times_);
}

}  // namespace baton::router
