#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "services/router/http/generate.h"
#include "services/router/http/json_input.h"
#include "services/router/http/respond.h"

namespace baton::router {
namespace {

// One text as it grows.
struct Generation {
  std::string text;
  std::vector<TokenPiece> prompt;
  std::vector<TokenPiece> tokens;
  std::optional<Outcome> outcome;  // At the end.
};

class GenerateWriter : public AnswerWriter {
 public:
  GenerateWriter(GeneratePlan plan, std::shared_ptr<HttpExchange> exchange)
      : plan_(std::move(plan)), exchange_(std::move(exchange)), generations_(plan_.shown.size()) {}

  void OnPromptTokens(size_t call, std::vector<TokenPiece> tokens) override {
    auto& prompt = generations_[call].prompt;
    prompt.insert(prompt.end(), std::make_move_iterator(tokens.begin()),
                  std::make_move_iterator(tokens.end()));
  }
  void OnTokens(size_t call, TextPiece piece) override {
    Generation& generation = generations_[call];
    generation.text += piece.text;
    for (TokenPiece& token : piece.tokens) generation.tokens.push_back(std::move(token));
    if (plan_.stream) SendEvent(call);
  }
  void OnFinished(size_t call, Outcome outcome) override {
    generations_[call].text += outcome.text;
    generations_[call].outcome = std::move(outcome);
    if (plan_.stream) SendEvent(call);
  }
  void OnAllFinished() override {
    if (plan_.stream) {
      exchange_->SendEvent("[DONE]");
      return exchange_->EndEvents();
    }
    if (!plan_.is_list) return RespondJson(*exchange_, Body(0));
    Json list = Json::array();
    for (size_t i = 0; i < generations_.size(); ++i) list.push_back(Body(i));
    RespondJson(*exchange_, list);
  }
  void OnError(const absl::Status& status) override {
    if (!plan_.stream) return RespondError(*exchange_, status);
    if (!open_) return FailStream(*exchange_, status);
    exchange_->SendEvent(Dump(ErrorBody(status)));
    exchange_->AbortEvents();
  }

 private:
  void SendEvent(size_t call) {
    if (!std::exchange(open_, true)) exchange_->BeginEvents();
    Json body = Body(call);
    if (plan_.is_list) body["index"] = call;
    exchange_->SendEvent(Dump(body));
  }

  // [log-probability, token id, text], the text only if asked for.
  Json Entry(const std::optional<float>& logprob, int32_t id, const std::string& bytes) const {
    return Json::array({logprob.has_value() ? Json(*logprob) : Json(), id,
                        plan_.text_in_logprobs ? Json(WellFormed(bytes)) : Json()});
  }

  // Adds those of `tokens` from `begin` on, under "input_..." or "output_...".
  void AddLogprobs(const std::string& prefix, const std::vector<TokenPiece>& tokens, size_t begin,
                   Json& meta) const {
    Json own = Json::array();
    Json tops = Json::array();
    for (size_t i = std::min(begin, tokens.size()); i < tokens.size(); ++i) {
      const TokenPiece& token = tokens[i];
      own.push_back(Entry(token.logprob, token.id, token.bytes));
      Json top = Json::array();
      for (const TokenPiece::Top& other : token.top) {
        top.push_back(Entry(other.logprob, other.id, other.bytes));
      }
      tops.push_back(token.logprob.has_value() ? std::move(top) : Json());
    }
    meta[prefix + "_token_logprobs"] = std::move(own);
    meta[prefix + "_top_logprobs"] = std::move(tops);
  }

  static Json FinishReasonOf(const std::optional<Outcome>& outcome) {
    if (!outcome.has_value()) return nullptr;
    switch (outcome->reason) {
      case FinishReason::kStop:
        return {{"type", "stop"},
                {"matched", outcome->matched_stop.empty() ? Json() : Json(outcome->matched_stop)}};
      case FinishReason::kLength:
        return {{"type", "length"}, {"length", outcome->usage.completion_tokens()}};
      case FinishReason::kAbort:
        return {{"type", "abort"}, {"message", "the request was aborted"}};
    }
    return nullptr;
  }

  Json Body(size_t call) const {
    const Generation& generation = generations_[call];
    const auto& outcome = generation.outcome;
    Json meta = {{"id", plan_.shown[call].id},
                 {"finish_reason", FinishReasonOf(outcome)},
                 {"prompt_tokens", plan_.shown[call].prompt_tokens},
                 {"completion_tokens", outcome ? outcome->usage.completion_tokens()
                                               : static_cast<int>(generation.tokens.size())},
                 {"cached_tokens", outcome ? outcome->usage.cached_tokens() : 0}};
    if (outcome.has_value()) {
      meta["e2e_latency"] = static_cast<double>(outcome->timing.e2e_us()) * 1e-6;
      if (!outcome->warnings.empty()) meta["warnings"] = outcome->warnings;
    }
    if (plan_.logprobs) {
      const bool input = plan_.logprob_start >= 0;
      AddLogprobs("input", generation.prompt,
                  input ? static_cast<size_t>(plan_.logprob_start) : generation.prompt.size(),
                  meta);
      AddLogprobs("output", generation.tokens, 0, meta);
    }
    Json ids = Json::array();
    for (const TokenPiece& token : generation.tokens) ids.push_back(token.id);
    return {
        {"text", generation.text}, {"output_ids", std::move(ids)}, {"meta_info", std::move(meta)}};
  }

  GeneratePlan plan_;
  const std::shared_ptr<HttpExchange> exchange_;
  std::vector<Generation> generations_;
  bool open_ = false;
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeGenerateWriter(GeneratePlan plan,
                                                 std::shared_ptr<HttpExchange> exchange) {
  return std::make_unique<GenerateWriter>(std::move(plan), std::move(exchange));
}

}  // namespace baton::router
