#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "services/router/core/context_overflow.h"
#include "services/router/core/rate_limits.h"
#include "services/router/http/messages.h"
#include "services/router/http/respond.h"

namespace baton::router {
namespace {

constexpr int kOverloadedStatus = 529;  // Anthropic's own; its clients try again.

int StatusOf(const absl::Status& status) {
  const bool overloaded = IsOverloaded(status) && !IsRateLimited(status);
  return overloaded ? kOverloadedStatus : HttpStatusOf(status);
}

const char* ErrorType(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 504:
      return "timeout_error";
    case kOverloadedStatus:
      return "overloaded_error";
    default:
      return status < 499 ? "invalid_request_error" : "api_error";
  }
}

// Agents that shorten a conversation when it has become too long know it by these words.
std::string MessageOf(const absl::Status& status) {
  const std::string field = FieldOf(status).value_or("");
  const bool too_long = IsContextOverflow(status) && field != "max_tokens";
  return absl::StrCat(too_long ? "prompt is too long: " : "", status.message());
}

Json ErrorJson(const absl::Status& status) {
  return {{"type", "error"},
          {"error", {{"type", ErrorType(StatusOf(status))}, {"message", MessageOf(status)}}}};
}

// What was cached is no part of input_tokens there.
Json UsageJson(const v1::Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens() - usage.cached_tokens()},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", usage.cached_tokens()},
          {"output_tokens", usage.completion_tokens()},
          {"output_tokens_details", {{"thinking_tokens", usage.reasoning_tokens()}}}};
}

const char* StopReason(const BlockAnswer& answer) {
  if (answer.reason == FinishReason::kLength) return "max_tokens";
  if (!answer.matched_stop.empty()) return "stop_sequence";
  return answer.called ? "tool_use" : "end_turn";
}

Json StopJson(const BlockAnswer& answer) {
  return {{"stop_reason", StopReason(answer)},
          {"stop_sequence", answer.matched_stop.empty() ? Json() : Json(answer.matched_stop)}};
}

// Thinking is signed there, so that it can be told from forged one when it is given back; here it
// is text, and any signature is taken.
Json BlockJson(const AnswerBlock& block) {
  switch (block.kind) {
    case AnswerBlock::Kind::kReasoning:
      return {{"type", "thinking"}, {"thinking", block.text}, {"signature", ""}};
    case AnswerBlock::Kind::kText:
      return {{"type", "text"}, {"text", block.text}};
    case AnswerBlock::Kind::kCall:
      return {{"type", "tool_use"}, {"id", block.call_id}, {"name", block.name}};
  }
  return nullptr;
}

// A call's input has the order of keys that the model wrote: it comes back in the next prompt, and
// would not be found in the prefix cache otherwise.
std::string BlockText(const AnswerBlock& block) {
  std::string text = Dump(BlockJson(block));
  if (block.kind != AnswerBlock::Kind::kCall) return text;
  text.pop_back();
  return absl::StrCat(text, ",\"input\":", block.text, "}");
}

Json Envelope(const MessageHeader& header) {
  return {{"id", header.id}, {"type", "message"}, {"role", "assistant"}, {"model", header.model}};
}

class WholeMessage : public BlockForm {
 public:
  WholeMessage(MessageHeader header, std::shared_ptr<HttpExchange> exchange)
      : header_(std::move(header)), exchange_(std::move(exchange)) {}

  void OnEnd(const BlockAnswer& answer) override {
    std::vector<std::string> blocks;
    blocks.reserve(answer.blocks.size());
    for (const AnswerBlock& block : answer.blocks) blocks.push_back(BlockText(block));
    Json message = Envelope(header_);
    message.update(StopJson(answer));
    message["usage"] = UsageJson(answer.usage);
    if (!answer.warnings.empty()) message["warnings"] = answer.warnings;
    std::string text = Dump(message);
    text.pop_back();
    HttpResponse response;
    response.body = absl::StrCat(text, ",\"content\":[", absl::StrJoin(blocks, ","), "]}");
    exchange_->Respond(std::move(response));
  }
  void OnError(const absl::Status& status) override {
    exchange_->Respond(MessagesErrorResponse(status));
  }

 private:
  const MessageHeader header_;
  const std::shared_ptr<HttpExchange> exchange_;
};

class MessageStream : public BlockForm {
 public:
  MessageStream(MessageHeader header, std::shared_ptr<HttpExchange> exchange)
      : header_(std::move(header)), exchange_(std::move(exchange)) {}

  void OnBegin() override {
    begun_ = true;
    exchange_->BeginEvents();
    v1::Usage usage;
    usage.set_prompt_tokens(static_cast<int32_t>(header_.prompt_tokens));
    Json message = Envelope(header_);
    message["content"] = Json::array();
    message["stop_reason"] = message["stop_sequence"] = nullptr;
    message["usage"] = UsageJson(usage);
    Send("message_start", {{"message", std::move(message)}});
    Send("ping", Json::object());
  }
  void OnBlock(size_t index, const AnswerBlock& block) override {
    kind_ = block.kind;
    Json begun = BlockJson(block);
    if (block.kind == AnswerBlock::Kind::kCall) begun["input"] = Json::object();
    Send("content_block_start", {{"index", index}, {"content_block", std::move(begun)}});
  }
  void OnText(size_t index, const std::string& added, std::span<const TokenPiece>) override {
    Json delta = kind_ == AnswerBlock::Kind::kReasoning
                     ? Json{{"type", "thinking_delta"}, {"thinking", added}}
                 : kind_ == AnswerBlock::Kind::kText
                     ? Json{{"type", "text_delta"}, {"text", added}}
                     : Json{{"type", "input_json_delta"}, {"partial_json", added}};
    Send("content_block_delta", {{"index", index}, {"delta", std::move(delta)}});
  }
  void OnBlockEnd(size_t index, const AnswerBlock&, bool) override {
    Send("content_block_stop", {{"index", index}});
  }
  void OnEnd(const BlockAnswer& answer) override {
    Json last = {{"delta", StopJson(answer)}, {"usage", UsageJson(answer.usage)}};
    if (!answer.warnings.empty()) last["warnings"] = answer.warnings;
    Send("message_delta", std::move(last));
    Send("message_stop", Json::object());
    exchange_->EndEvents();
  }
  void OnError(const absl::Status& status) override {
    const HttpEvent event("error", Dump(ErrorJson(status)));
    if (!begun_) return exchange_->RespondOrEnd(MessagesErrorResponse(status), {event});
    exchange_->SendEvent(event);
    exchange_->AbortEvents();
  }

 private:
  void Send(const char* type, Json fields) {
    fields["type"] = type;
    exchange_->SendEvent(HttpEvent(type, Dump(fields)));
  }

  const MessageHeader header_;
  const std::shared_ptr<HttpExchange> exchange_;
  AnswerBlock::Kind kind_ = AnswerBlock::Kind::kText;  // The open block's.
  bool begun_ = false;
};

}  // namespace

HttpResponse MessagesErrorResponse(const absl::Status& status) {
  HttpResponse response = ErrorResponse(status);  // With its headers.
  response.status = StatusOf(status);
  response.body = Dump(ErrorJson(status));
  return response;
}

std::unique_ptr<BlockForm> MakeWholeMessage(MessageHeader header,
                                            std::shared_ptr<HttpExchange> exchange) {
  return std::make_unique<WholeMessage>(std::move(header), std::move(exchange));
}

std::unique_ptr<BlockForm> MakeMessageStream(MessageHeader header,
                                             std::shared_ptr<HttpExchange> exchange) {
  return std::make_unique<MessageStream>(std::move(header), std::move(exchange));
}

}  // namespace baton::router
