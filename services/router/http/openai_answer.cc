#include "services/router/http/openai_answer.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "services/router/http/choice_parser.h"
#include "services/router/http/respond.h"

namespace baton::router {
namespace {

absl::Status NoPromptLogprobs() {
  return absl::InternalError("the workers sent no log-probabilities of the prompt");
}

size_t CallsOf(const AnswerPlan& plan) {
  return plan.prompts.size() * static_cast<size_t>(plan.best_of);
}

// A prompt counts once, however many candidates continue it.
void AddUsage(const v1::Usage& usage, bool first_of_prompt, v1::Usage& sum) {
  sum.set_completion_tokens(sum.completion_tokens() + usage.completion_tokens());
  sum.set_reasoning_tokens(sum.reasoning_tokens() + usage.reasoning_tokens());
  if (!first_of_prompt) return;
  sum.set_prompt_tokens(sum.prompt_tokens() + usage.prompt_tokens());
  sum.set_cached_tokens(sum.cached_tokens() + usage.cached_tokens());
}

// Where the tokens are in the text that the client sees.
void PlaceEchoed(const ShownPrompt& prompt, std::vector<TokenPiece>& tokens) {
  for (TokenPiece& token : tokens) {
    token.text_offset = std::max<int64_t>(0, token.text_offset - prompt.added_characters);
  }
}
void PlaceTokens(const ShownPrompt& prompt, std::vector<TokenPiece>& tokens) {
  for (TokenPiece& token : tokens) token.text_offset += prompt.echo_characters;
}

// The call may have been asked for more alternatives than these tokens are shown with.
void CutTop(int64_t alternatives, std::vector<TokenPiece>& tokens) {
  const auto most = static_cast<size_t>(alternatives);
  for (TokenPiece& token : tokens) token.top.resize(std::min(token.top.size(), most));
}

void Append(std::vector<TokenPiece> from, std::vector<TokenPiece>& to) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

// Collects everything and sends it in one piece.
class WholeWriter : public AnswerWriter {
 public:
  WholeWriter(Gateway& gateway, AnswerPlan plan, std::shared_ptr<HttpExchange> exchange)
      : gateway_(gateway),
        plan_(std::move(plan)),
        exchange_(std::move(exchange)),
        candidates_(CallsOf(plan_)) {
    if (plan_.parsing == nullptr) return;
    for (size_t call = 0; call < candidates_.size(); ++call) {
      candidates_[call].parser = std::make_unique<ChoiceParser>(
          plan_.parsing, plan_.include_reasoning, plan_.header.id, call);
    }
  }

  void OnPromptTokens(size_t call, std::vector<TokenPiece> tokens) override {
    Append(std::move(tokens), candidates_[call].echoed);
  }
  void OnTokens(size_t call, TextPiece piece) override {
    Candidate& candidate = candidates_[call];
    if (candidate.parser != nullptr) {
      MergeAll(candidate.parser->Append(piece.text, piece.tokens.size()), candidate.parsed);
    } else {
      candidate.text += piece.text;
    }
    for (const TokenPiece& token : piece.tokens) {
      candidate.logprob_sum += token.logprob.value_or(0);
      ++candidate.tokens_seen;
    }
    if (plan_.header.logprobs || plan_.header.token_ids) {
      Append(std::move(piece.tokens), candidate.tokens);
    }
  }
  void OnFinished(size_t call, Outcome outcome) override {
    Candidate& candidate = candidates_[call];
    candidate.outcome = std::move(outcome);
    if (candidate.parser != nullptr) {
      EndParsing(candidate);
    } else {
      candidate.text += candidate.outcome.text;
    }
  }
  void OnAllFinished() override {
    Json choices = Json::array();
    Json prompt_logprobs;  // A chat's, which has one prompt.
    v1::Usage usage;
    std::set<std::string> warnings;
    for (size_t prompt = 0; prompt < plan_.prompts.size(); ++prompt) {
      const size_t first = prompt * static_cast<size_t>(plan_.best_of);
      for (size_t i = first; i < first + static_cast<size_t>(plan_.best_of); ++i) {
        AddUsage(candidates_[i].outcome.usage, i == first, usage);
        warnings.insert(candidates_[i].outcome.warnings.begin(),
                        candidates_[i].outcome.warnings.end());
      }
      for (const size_t call : Best(first)) {
        if (LacksEcho(prompt, candidates_[call]))
          return RespondError(*exchange_, NoPromptLogprobs());
        if (plan_.header.prompt_logprobs && prompt_logprobs.is_null()) {
          prompt_logprobs = PromptLogprobs(candidates_[call].echoed, *plan_.header.prompt_logprobs);
        }
        choices.push_back(WholeChoice(
            plan_.header, Part(prompt, candidates_[call], static_cast<int>(choices.size()))));
      }
    }
    Json answer =
        WholeAnswer(plan_.header, std::move(choices), usage, {warnings.begin(), warnings.end()});
    if (plan_.header.endpoint == Endpoint::kChatCompletions && !prompt_logprobs.is_null()) {
      answer["prompt_logprobs"] = std::move(prompt_logprobs);
    }
    RespondJson(*exchange_, answer);
  }
  void OnError(const absl::Status& status) override { RespondError(*exchange_, status); }

 private:
  struct Candidate {
    std::string text;
    std::unique_ptr<ChoiceParser> parser;  // Null: the text is the content.
    ChoicePart parsed;                     // What the parser has given.
    std::vector<TokenPiece> echoed;
    std::vector<TokenPiece> tokens;
    double logprob_sum = 0;
    int tokens_seen = 0;
    Outcome outcome;

    double score() const {
      return tokens_seen == 0 ? -std::numeric_limits<double>::infinity()
                              : logprob_sum / tokens_seen;
    }
  };

  static void MergeAll(std::vector<ChoicePart> parts, ChoicePart& to) {
    for (ChoicePart& part : parts) Merge(std::move(part), to);
  }
  void EndParsing(Candidate& candidate) {
    ChoiceParser& parser = *candidate.parser;
    MergeAll(parser.Finish(candidate.outcome.text), candidate.parsed);
    candidate.parsed.called = parser.calls() > 0;
    candidate.text = std::move(candidate.parsed.text);
    candidate.outcome.usage.set_reasoning_tokens(parser.reasoning_tokens());
    gateway_.CountToolCalls(parser.calls(), parser.malformed());
  }

  // The calls of the prompt whose first is `first` that are answered: in order, or if there are
  // more candidates than choices by their mean log-probability, the highest first.
  std::vector<size_t> Best(size_t first) const {
    std::vector<size_t> calls(static_cast<size_t>(plan_.best_of));
    std::iota(calls.begin(), calls.end(), first);
    if (plan_.best_of > plan_.n) {
      std::stable_sort(calls.begin(), calls.end(), [this](size_t a, size_t b) {
        return candidates_[a].score() > candidates_[b].score();
      });
      calls.resize(static_cast<size_t>(plan_.n));
    }
    return calls;
  }

  bool LacksEcho(size_t prompt, const Candidate& candidate) const {
    const bool wanted =
        (plan_.echo && plan_.header.logprobs) || plan_.header.prompt_logprobs.has_value();
    return wanted && candidate.echoed.size() != plan_.prompts[prompt].ids.size();
  }

  ChoicePart Part(size_t prompt, Candidate& candidate, int index) const {
    const ShownPrompt& shown = plan_.prompts[prompt];
    ChoicePart part = std::move(candidate.parsed);
    part.index = index;
    part.text = shown.echo + candidate.text;
    if (plan_.header.prompt_logprobs) part.prompt = candidate.echoed;
    if (plan_.echo) part.echoed = std::move(candidate.echoed);
    part.tokens = std::move(candidate.tokens);
    CutTop(plan_.header.top_logprobs, part.echoed);
    CutTop(plan_.header.top_logprobs, part.tokens);
    PlaceEchoed(shown, part.echoed);
    PlaceTokens(shown, part.tokens);
    part.reason = candidate.outcome.reason;
    part.matched_stop = candidate.outcome.matched_stop;
    part.prompt_ids = &shown.ids;
    return part;
  }

  Gateway& gateway_;
  AnswerPlan plan_;
  const std::shared_ptr<HttpExchange> exchange_;
  std::vector<Candidate> candidates_;
};

// Sends every decode step of every choice as one event; of a text that is taken apart, every piece
// as one.
class StreamWriter : public AnswerWriter {
 public:
  StreamWriter(Gateway& gateway, AnswerPlan plan, std::shared_ptr<HttpExchange> exchange)
      : gateway_(gateway),
        plan_(std::move(plan)),
        exchange_(std::move(exchange)),
        choices_(CallsOf(plan_)),
        shows_text_alone_(!plan_.header.logprobs && !plan_.header.token_ids &&
                          !plan_.header.continuous_usage) {
    if (plan_.parsing == nullptr) return;
    for (size_t call = 0; call < choices_.size(); ++call) {
      choices_[call].parser = std::make_unique<ChoiceParser>(plan_.parsing, plan_.include_reasoning,
                                                             plan_.header.id, call);
    }
  }

  void OnPromptProgress(size_t call, PromptProgress progress) override {
    if (!plan_.header.progress || failed_) return;
    exchange_->BeginEvents();
    exchange_->SendEvent(
        Dump(ProgressChunk(plan_.header, static_cast<int>(call), progress, so_far_)));
  }
  void OnPromptTokens(size_t call, std::vector<TokenPiece> tokens) override {
    Append(std::move(tokens), choices_[call].echoed);
  }
  void OnTokens(size_t call, TextPiece piece) override {
    Open(call);
    so_far_.set_completion_tokens(so_far_.completion_tokens() +
                                  static_cast<int>(piece.tokens.size()));
    PlaceTokens(ShownOf(call), piece.tokens);
    if (choices_[call].parser != nullptr) {
      std::vector<ChoicePart> parts =
          choices_[call].parser->Append(piece.text, piece.tokens.size());
      return SendParts(call, std::move(parts), std::move(piece.tokens));
    }
    ChoicePart part;
    part.text = std::move(piece.text);
    part.tokens = std::move(piece.tokens);
    Send(call, std::move(part));
  }
  void OnFinished(size_t call, Outcome outcome) override {
    Open(call);
    if (const auto& parser = choices_[call].parser; parser != nullptr) {
      outcome.usage.set_reasoning_tokens(parser->reasoning_tokens());
    }
    AddUsage(outcome.usage, call % static_cast<size_t>(plan_.best_of) == 0, usage_);
    warnings_.insert(outcome.warnings.begin(), outcome.warnings.end());
    ChoicePart part;
    if (const auto& parser = choices_[call].parser; parser != nullptr) {
      SendParts(call, parser->Finish(outcome.text), {});
      part.called = parser->calls() > 0;
      gateway_.CountToolCalls(parser->calls(), parser->malformed());
    } else {
      part.text = std::move(outcome.text);
    }
    part.reason = outcome.reason;
    part.matched_stop = std::move(outcome.matched_stop);
    Send(call, std::move(part));
  }
  void OnAllFinished() override {
    if (failed_) return;
    if (plan_.header.usage) exchange_->SendEvent(Dump(UsageChunk(plan_.header, usage_)));
    exchange_->SendEvent("[DONE]");
    exchange_->EndEvents();
  }
  void OnError(const absl::Status& status) override {
    if (std::exchange(failed_, true)) return;
    if (!open_) return FailStream(*exchange_, status);
    exchange_->SendEvent(Dump(ErrorBody(status)));
    exchange_->AbortEvents();
  }

 private:
  struct Choice {
    bool open = false;
    std::vector<TokenPiece> echoed;        // Until it is open.
    std::unique_ptr<ChoiceParser> parser;  // Null: the text is the content.
    std::optional<TextChunk> text_chunk;   // From its first use on.
  };

  const ShownPrompt& ShownOf(size_t call) const {
    return plan_.prompts[call / static_cast<size_t>(plan_.best_of)];
  }

  // What stands before a choice's first token: the stream's header, its role, its prompt.
  void Open(size_t call) {
    Choice& choice = choices_[call];
    if (failed_ || std::exchange(choice.open, true)) return;
    const ShownPrompt& shown = ShownOf(call);
    if (plan_.echo && plan_.header.logprobs && choice.echoed.size() != shown.ids.size()) {
      return OnError(NoPromptLogprobs());
    }
    if (!std::exchange(open_, true)) exchange_->BeginEvents();
    if (call % static_cast<size_t>(plan_.best_of) == 0) {
      so_far_.set_prompt_tokens(so_far_.prompt_tokens() + static_cast<int>(shown.ids.size()));
    }
    if (plan_.header.endpoint == Endpoint::kChatCompletions) {
      exchange_->SendEvent(Dump(Chunk(plan_.header, RoleChoice(static_cast<int>(call)), so_far_)));
    }
    if (!plan_.echo && !plan_.header.token_ids) return;
    ChoicePart part;
    part.text = shown.echo;
    part.echoed = std::move(choice.echoed);
    part.prompt_ids = &shown.ids;
    PlaceEchoed(shown, part.echoed);
    Send(call, std::move(part));
  }

  // The tokens stand with the first part. They are no part's own: a mark is none either.
  void SendParts(size_t call, std::vector<ChoicePart> parts, std::vector<TokenPiece> tokens) {
    const bool shows_tokens = plan_.header.logprobs || plan_.header.token_ids;
    if (parts.empty() && shows_tokens && !tokens.empty()) parts.emplace_back();
    if (!parts.empty()) parts.front().tokens = std::move(tokens);
    for (ChoicePart& part : parts) Send(call, std::move(part));
  }

  bool IsOnlyText(const ChoicePart& part) const {
    return !part.text.empty() && part.reasoning.empty() && part.calls.empty() &&
           !part.reason.has_value() && part.echoed.empty() && part.prompt_ids == nullptr &&
           warnings_.empty();
  }

  void Send(size_t call, ChoicePart part) {
    if (failed_) return;
    if (shows_text_alone_ && IsOnlyText(part)) {
      auto& chunk = choices_[call].text_chunk;
      if (!chunk.has_value()) chunk.emplace(plan_.header, static_cast<int>(call));
      return exchange_->SendEvent(chunk->With(part.text));
    }
    part.index = static_cast<int>(call);
    Json chunk = Chunk(plan_.header, ChunkChoice(plan_.header, part), so_far_);
    if (!warnings_.empty()) chunk["warnings"] = std::exchange(warnings_, {});
    exchange_->SendEvent(Dump(chunk));
  }

  Gateway& gateway_;
  AnswerPlan plan_;
  const std::shared_ptr<HttpExchange> exchange_;
  std::vector<Choice> choices_;
  const bool shows_text_alone_;  // Chunks show no tokens and no usage so far.
  v1::Usage usage_;              // Sum over finished choices.
  v1::Usage so_far_;             // As continuous usage shows it.
  std::set<std::string> warnings_;
  bool open_ = false;  // The client has been sent a choice.
  bool failed_ = false;
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeWholeWriter(Gateway& gateway, AnswerPlan plan,
                                              std::shared_ptr<HttpExchange> exchange) {
  return std::make_unique<WholeWriter>(gateway, std::move(plan), std::move(exchange));
}

std::unique_ptr<AnswerWriter> MakeStreamWriter(Gateway& gateway, AnswerPlan plan,
                                               std::shared_ptr<HttpExchange> exchange) {
  return std::make_unique<StreamWriter>(gateway, std::move(plan), std::move(exchange));
}

}  // namespace baton::router
