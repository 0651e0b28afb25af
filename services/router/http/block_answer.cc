#include "services/router/http/block_answer.h"

#include <iterator>
#include <span>
#include <utility>

#include "services/router/http/choice_parser.h"

namespace baton::router {
namespace {

class BlockWriter : public AnswerWriter {
 public:
  BlockWriter(Gateway& gateway, AnswerPlan plan, FieldRenames renames,
              std::unique_ptr<BlockForm> form)
      : gateway_(gateway),
        plan_(std::move(plan)),
        renames_(std::move(renames)),
        form_(std::move(form)) {
    if (plan_.parsing == nullptr) return;
    parser_ = std::make_unique<ChoiceParser>(plan_.parsing, plan_.include_reasoning,
                                             plan_.header.id, /*choice=*/0);
  }

  void OnPromptTokens(size_t, std::vector<TokenPiece>) override {}
  void OnTokens(size_t, TextPiece piece) override {
    Begin();
    const size_t count = piece.tokens.size();
    if (plan_.header.logprobs) {
      tokens_.insert(tokens_.end(), std::make_move_iterator(piece.tokens.begin()),
                     std::make_move_iterator(piece.tokens.end()));
    }
    if (parser_ == nullptr) return Add(AnswerBlock::Kind::kText, piece.text);
    AddAll(parser_->Append(piece.text, count));
  }
  void OnFinished(size_t, Outcome outcome) override {
    if (outcome.reason == FinishReason::kAbort) {
      failed_ = true;
      return form_->OnError(absl::CancelledError("the request was ended by /abort_request"));
    }
    Begin();
    if (parser_ == nullptr) {
      Add(AnswerBlock::Kind::kText, outcome.text);
    } else {
      AddAll(parser_->Finish(outcome.text));
      outcome.usage.set_reasoning_tokens(parser_->reasoning_tokens());
      answer_.called = parser_->calls() > 0;
      gateway_.CountToolCalls(parser_->calls(), parser_->malformed());
    }
    EndBlock(outcome.reason != FinishReason::kLength);
    answer_.reason = outcome.reason;
    answer_.matched_stop = std::move(outcome.matched_stop);
    answer_.usage = outcome.usage;
    answer_.warnings = std::move(outcome.warnings);
  }
  void OnAllFinished() override {
    if (!failed_) form_->OnEnd(answer_);
  }
  void OnError(const absl::Status& status) override { form_->OnError(renames_.Apply(status)); }

 private:
  void Begin() {
    if (!std::exchange(begun_, true)) form_->OnBegin();
  }

  void AddAll(std::vector<ChoicePart> parts) {
    for (ChoicePart& part : parts) {
      Add(AnswerBlock::Kind::kReasoning, part.reasoning);
      Add(AnswerBlock::Kind::kText, part.text);
      for (CallPart& call : part.calls) AddCall(std::move(call));
    }
  }

  void Add(AnswerBlock::Kind kind, const std::string& text) {
    if (text.empty()) return;
    if (!open_ || answer_.blocks.back().kind != kind) OpenBlock({kind});
    Extend(text);
  }

  void AddCall(CallPart call) {
    if (!call.id.empty()) {
      OpenBlock({AnswerBlock::Kind::kCall, "", std::move(call.id), std::move(call.name)});
    }
    if (!call.arguments.empty()) Extend(call.arguments);
  }

  void OpenBlock(AnswerBlock block) {
    EndBlock(/*complete=*/true);
    open_ = true;
    answer_.blocks.push_back(std::move(block));
    form_->OnBlock(answer_.blocks.size() - 1, answer_.blocks.back());
  }

  // The tokens since the last text are this one's; those of other blocks are not told.
  void Extend(const std::string& text) {
    AnswerBlock& block = answer_.blocks.back();
    block.text += text;
    const size_t before = block.tokens.size();
    if (block.kind == AnswerBlock::Kind::kText) {
      block.tokens.insert(block.tokens.end(), std::make_move_iterator(tokens_.begin()),
                          std::make_move_iterator(tokens_.end()));
    }
    tokens_.clear();
    form_->OnText(answer_.blocks.size() - 1, text, std::span(block.tokens).subspan(before));
  }

  void EndBlock(bool complete) {
    if (!std::exchange(open_, false)) return;
    form_->OnBlockEnd(answer_.blocks.size() - 1, answer_.blocks.back(), complete);
  }

  Gateway& gateway_;
  const AnswerPlan plan_;
  const FieldRenames renames_;
  const std::unique_ptr<BlockForm> form_;
  std::unique_ptr<ChoiceParser> parser_;  // Null: the text is the content.
  BlockAnswer answer_;
  std::vector<TokenPiece> tokens_;  // Whose text is held back.
  bool begun_ = false;
  bool open_ = false;  // The last block may have more text.
  bool failed_ = false;
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeBlockWriter(Gateway& gateway, AnswerPlan plan,
                                              FieldRenames renames,
                                              std::unique_ptr<BlockForm> form) {
  return std::make_unique<BlockWriter>(gateway, std::move(plan), std::move(renames),
                                       std::move(form));
}

}  // namespace baton::router
