#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "services/router/http/openai_format.h"
#include "services/router/http/respond.h"
#include "services/router/http/responses.h"

namespace baton::router {
namespace {

using Kind = AnswerBlock::Kind;

// What a kind of block is in the protocol's names.
struct ItemNames {
  const char* id_prefix;
  const char* delta;  // The event that adds text, and
  const char* done;   // the one that ends it with all of it,
  const char* text;   // in this field.
};

ItemNames NamesOf(Kind kind) {
  switch (kind) {
    case Kind::kReasoning:
      return {"rs_", "response.reasoning_text.delta", "response.reasoning_text.done", "text"};
    case Kind::kText:
      return {"msg_", "response.output_text.delta", "response.output_text.done", "text"};
    case Kind::kCall:
      return {"fc_", "response.function_call_arguments.delta",
              "response.function_call_arguments.done", "arguments"};
  }
  return {"", "", "", ""};
}

Json PartJson(const AnswerBlock& block) {
  if (block.kind == Kind::kReasoning) return {{"type", "reasoning_text"}, {"text", block.text}};
  return {{"type", "output_text"},
          {"text", block.text},
          {"annotations", Json::array()},
          {"logprobs", TokenLogprobs(block.tokens)}};
}

Json UsageJson(const v1::Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens()},
          {"input_tokens_details",
           {{"cached_tokens", usage.cached_tokens()}, {"cache_write_tokens", 0}}},
          {"output_tokens", usage.completion_tokens()},
          {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens()}}},
          {"total_tokens", usage.prompt_tokens() + usage.completion_tokens()}};
}

// The response's object at its various stages.
class ResponseShape {
 public:
  explicit ResponseShape(ResponseHeader header) : header_(std::move(header)) {}

  Json Begun() const {
    Json response = {
        {"id", header_.id},          {"object", "response"},    {"created_at", header_.created_s},
        {"status", "in_progress"},   {"model", header_.model},  {"output", Json::array()},
        {"usage", nullptr},          {"error", nullptr},        {"incomplete_details", nullptr},
        {"background", false},       {"store", false},          {"previous_response_id", nullptr},
        {"service_tier", "default"}, {"truncation", "disabled"}};
    const std::pair<const char*, Json> settings[] = {
        {"instructions", nullptr},
        {"max_output_tokens", nullptr},
        {"metadata", Json::object()},
        {"parallel_tool_calls", true},
        {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
        {"temperature", nullptr},
        {"text", {{"format", {{"type", "text"}}}}},
        {"tool_choice", "auto"},
        {"tools", Json::array()},
        {"top_p", nullptr},
        {"user", nullptr}};
    const Fields given(header_.given);
    for (const auto& [name, absent] : settings) {
      const Json* value = given.Find(name);
      response[name] = value == nullptr ? absent : *value;
    }
    return response;
  }

  Json Ended(const BlockAnswer& answer) const {
    Json response = Begun();
    const bool cut = answer.reason == FinishReason::kLength;
    response["status"] = cut ? "incomplete" : "completed";
    if (cut) response["incomplete_details"] = {{"reason", "max_output_tokens"}};
    for (size_t i = 0; i < answer.blocks.size(); ++i) {
      const bool last = i + 1 == answer.blocks.size();
      response["output"].push_back(
          Item(i, answer.blocks[i], cut && last ? "incomplete" : "completed"));
    }
    response["usage"] = UsageJson(answer.usage);
    if (!answer.warnings.empty()) response["warnings"] = answer.warnings;
    return response;
  }

  Json Failed(const absl::Status& status) const {
    Json response = Begun();
    response["status"] = "failed";
    response["error"] = {{"code", IsOverloaded(status) ? "rate_limit_exceeded" : "server_error"},
                         {"message", std::string(status.message())}};
    return response;
  }

  std::string ItemId(size_t index, Kind kind) const {
    const absl::string_view own = absl::StripPrefix(header_.id, "resp_");
    return absl::StrCat(NamesOf(kind).id_prefix, own, "_", index);
  }

  // The item of a block, with the text that it has by then.
  Json Item(size_t index, const AnswerBlock& block, const std::string& status) const {
    Json item = {{"id", ItemId(index, block.kind)}, {"status", status}};
    const Json parts = status == "in_progress" ? Json::array() : Json::array({PartJson(block)});
    switch (block.kind) {
      case Kind::kReasoning:
        item.update({{"type", "reasoning"},
                     {"summary", Json::array()},
                     {"content", parts},
                     {"encrypted_content", nullptr}});
        break;
      case Kind::kText:
        item.update({{"type", "message"}, {"role", "assistant"}, {"content", parts}});
        break;
      case Kind::kCall:
        item.update({{"type", "function_call"},
                     {"call_id", block.call_id},
                     {"name", block.name},
                     {"arguments", block.text}});
    }
    return item;
  }

 private:
  const ResponseHeader header_;
};

class WholeResponse : public BlockForm {
 public:
  WholeResponse(ResponseHeader header, std::shared_ptr<HttpExchange> exchange)
      : shape_(std::move(header)), exchange_(std::move(exchange)) {}

  void OnEnd(const BlockAnswer& answer) override { RespondJson(*exchange_, shape_.Ended(answer)); }
  void OnError(const absl::Status& status) override { RespondError(*exchange_, status); }

 private:
  const ResponseShape shape_;
  const std::shared_ptr<HttpExchange> exchange_;
};

class ResponseStream : public BlockForm {
 public:
  ResponseStream(ResponseHeader header, std::shared_ptr<HttpExchange> exchange)
      : shape_(std::move(header)), exchange_(std::move(exchange)) {}

  void OnBegin() override {
    begun_ = true;
    exchange_->BeginEvents();
    Send("response.created", {{"response", shape_.Begun()}});
    Send("response.in_progress", {{"response", shape_.Begun()}});
  }

  void OnBlock(size_t index, const AnswerBlock& block) override {
    kind_ = block.kind;
    Send("response.output_item.added",
         {{"output_index", index}, {"item", shape_.Item(index, block, "in_progress")}});
    if (kind_ == Kind::kCall) return;
    Json part = At(index);
    part["part"] = PartJson({kind_});
    Send("response.content_part.added", std::move(part));
  }

  void OnText(size_t index, const std::string& added, std::span<const TokenPiece> tokens) override {
    Json delta = At(index);
    delta["delta"] = added;
    if (kind_ == Kind::kText) delta["logprobs"] = TokenLogprobs(tokens);
    Send(NamesOf(kind_).delta, std::move(delta));
  }

  void OnBlockEnd(size_t index, const AnswerBlock& block, bool complete) override {
    Json done = At(index);
    done[NamesOf(kind_).text] = block.text;
    if (kind_ == Kind::kText) done["logprobs"] = TokenLogprobs(block.tokens);
    if (kind_ == Kind::kCall) done["name"] = block.name;
    Send(NamesOf(kind_).done, std::move(done));
    if (kind_ != Kind::kCall) {
      Json part = At(index);
      part["part"] = PartJson(block);
      Send("response.content_part.done", std::move(part));
    }
    Send("response.output_item.done",
         {{"output_index", index},
          {"item", shape_.Item(index, block, complete ? "completed" : "incomplete")}});
  }

  void OnEnd(const BlockAnswer& answer) override {
    const bool cut = answer.reason == FinishReason::kLength;
    Send(cut ? "response.incomplete" : "response.completed", {{"response", shape_.Ended(answer)}});
    exchange_->EndEvents();
  }

  void OnError(const absl::Status& status) override {
    if (begun_) {
      Send("response.failed", {{"response", shape_.Failed(status)}});
      return exchange_->AbortEvents();
    }
    Json error = ErrorBody(status)["error"];
    error["type"] = "error";
    error["sequence_number"] = 0;
    exchange_->RespondOrEnd(ErrorResponse(status), {HttpEvent("error", Dump(error))});
  }

 private:
  // Where a part stands.
  Json At(size_t index) const {
    Json place = {{"item_id", shape_.ItemId(index, kind_)}, {"output_index", index}};
    if (kind_ != Kind::kCall) place["content_index"] = 0;
    return place;
  }

  void Send(const char* type, Json fields) {
    fields["type"] = type;
    fields["sequence_number"] = sequence_number_++;
    exchange_->SendEvent(HttpEvent(type, Dump(fields)));
  }

  const ResponseShape shape_;
  const std::shared_ptr<HttpExchange> exchange_;
  Kind kind_ = Kind::kText;  // The open block's.
  int64_t sequence_number_ = 0;
  bool begun_ = false;
};

}  // namespace

std::unique_ptr<BlockForm> MakeWholeResponse(ResponseHeader header,
                                             std::shared_ptr<HttpExchange> exchange) {
  return std::make_unique<WholeResponse>(std::move(header), std::move(exchange));
}

std::unique_ptr<BlockForm> MakeResponseStream(ResponseHeader header,
                                              std::shared_ptr<HttpExchange> exchange) {
  return std::make_unique<ResponseStream>(std::move(header), std::move(exchange));
}

}  // namespace baton::router
