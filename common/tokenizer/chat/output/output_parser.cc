#include "common/tokenizer/chat/output/output_parser.h"

#include <algorithm>
#include <utility>

namespace baton::chat {
namespace {

constexpr size_t kMaxLeadBytes = 1024;  // White space before a call that needs no mark.
constexpr size_t kSliceBytes = 4096;    // What is looked at together.

// How much of the end of `text` may be the beginning of `mark`.
size_t Overlap(std::string_view text, std::string_view mark) {
  for (size_t length = std::min(text.size(), mark.size() - 1); length > 0; --length) {
    if (text.substr(text.size() - length) == mark.substr(0, length)) return length;
  }
  return 0;
}

}  // namespace

bool StartsInReasoning(ReasoningFormat format, std::string_view tail) {
  const ReasoningMarks marks = MarksOf(format);
  if (format == ReasoningFormat::kNone) return false;
  tail = Trim(tail);
  if (tail.ends_with(marks.end)) return false;
  return marks.begins_inside || tail.ends_with(marks.begin);
}

bool BreaksOffInReasoning(ReasoningFormat format, std::string_view content) {
  if (format == ReasoningFormat::kNone) return false;
  const ReasoningMarks marks = MarksOf(format);
  const size_t begin = content.rfind(marks.begin);
  return begin != std::string_view::npos &&
         content.find(marks.end, begin) == std::string_view::npos;
}

OutputParser::OutputParser(std::shared_ptr<const OutputOptions> options)
    : options_(std::move(options)),
      reasoning_(MarksOf(options_->reasoning)),
      tool_marks_(MarksOf(options_->tools)) {
  AddMarks();
  state_ = State::kLead;
  lead_ = LeadOfContent(/*reasoning=*/!reasoning_.begin.empty());
  if (!options_->starts_in_reasoning) return;
  lead_ = {.reasoning = true, .otherwise = State::kReasoning};
  fresh_ = true;
}

void OutputParser::AddMarks() {
  for (const std::string_view mark : tool_marks_.begin) AddMark(mark, Act::kBeginCall);
  for (const std::string_view mark : tool_marks_.around) AddMark(mark, Act::kAround);
  // Other marks are prose unless they are special tokens, which are never prose.
  for (const std::string& mark : options_->special_marks) {
    AddMark(mark, mark == reasoning_.begin ? Act::kBeginReasoning : Act::kDrop);
  }
}

void OutputParser::AddMark(std::string_view text, Act act) {
  const bool known = std::any_of(marks_.begin(), marks_.end(),
                                 [&](const Mark& other) { return other.text == text; });
  if (known) return;
  const auto& special = options_->special_marks;
  const bool is_special = std::find(special.begin(), special.end(), text) != special.end();
  marks_.push_back({text, act, is_special});
}

bool OutputParser::needs_no_mark() const {
  const ToolFormat tools = options_->tools;
  return tools == ToolFormat::kLlama3 || tools == ToolFormat::kPythonic ||
         tools == ToolFormat::kJson;
}

OutputParser::Lead OutputParser::LeadOfContent(bool reasoning) const {
  return {.reasoning = reasoning, .value = needs_no_mark()};
}

std::vector<OutputPiece> OutputParser::Append(std::string_view text) {
  input_ += text;
  Drain();
  return std::exchange(out_, {});
}

// In slices, so that work is linear however many marks there are.
void OutputParser::Drain() {
  while (taken_ < input_.size()) {
    const size_t length = std::min(kSliceBytes, input_.size() - taken_);
    pending_.append(input_, taken_, length);
    taken_ += length;
    Run();
  }
  input_.erase(0, taken_ - pending_.size());
  taken_ = pending_.size();
}

void OutputParser::Run() {
  while (!pending_.empty() && Step()) {
  }
}

bool OutputParser::Step() {
  switch (state_) {
    case State::kLead:
      return StepLead();
    case State::kText:
      return StepText();
    case State::kReasoning:
      return StepReasoning();
    case State::kBody:
      return StepBody();
  }
  return false;
}

// Decides by the first bytes that are no white space.
bool OutputParser::StepLead() {
  const std::string_view skipped = lead_.after_call ? " \t\r\n;" : kSpaces;
  const size_t at = std::min(pending_.find_first_not_of(skipped), pending_.size());
  if (at > kMaxLeadBytes) {
    state_ = lead_.otherwise;
    return true;
  }
  if (at == pending_.size()) return false;
  const std::string_view rest = std::string_view(pending_).substr(at);
  if (lead_.reasoning && rest.starts_with(reasoning_.begin)) {
    pending_.erase(0, at + reasoning_.begin.size());
    AtMark();
    state_ = State::kReasoning;
    return true;
  }
  if (lead_.reasoning && reasoning_.begin.starts_with(rest)) return false;
  if (lead_.value && !only_marked_ && (rest.front() == '{' || rest.front() == '[')) {
    if (!lead_.after_call) Say(OutputPiece::Kind::kContent, pending_.substr(0, at));
    pending_.erase(0, at);
    BeginCall("");
    return true;
  }
  state_ = lead_.otherwise;
  return true;
}

// Content up to the first mark.
bool OutputParser::StepText() {
  const Mark* first = nullptr;
  size_t at = pending_.size();
  size_t held = 0;
  for (const Mark& mark : marks_) {
    const size_t found = pending_.find(mark.text);
    if (found < at) {
      at = found;
      first = &mark;
    }
    held = std::max(held, Overlap(pending_, mark.text));
  }
  if (first == nullptr) at -= held;
  Say(OutputPiece::Kind::kContent, std::string_view(pending_).substr(0, at));
  pending_.erase(0, at);
  if (first == nullptr) return false;
  Begin(*first);
  return true;
}

void OutputParser::Begin(const Mark& mark) {
  pending_.erase(0, mark.text.size());
  switch (mark.act) {
    case Act::kBeginCall:
      return BeginCall(mark.text);
    case Act::kBeginReasoning:
      AtMark();
      state_ = State::kReasoning;
      return;
    case Act::kAround:
    case Act::kDrop:
      AtMark();
      return;
  }
}

// Up to its end mark or a special token. One of calls ends it too: the model has gone on to them
// without saying so. Others are dropped, its own first mark again among them.
bool OutputParser::StepReasoning() {
  const std::string_view pending = pending_;
  const Mark end = {reasoning_.end, Act::kDrop, false};
  const Mark* first = &end;
  size_t at = pending.find(end.text);
  size_t held = Overlap(pending, end.text);
  for (const Mark& mark : marks_) {
    if (!mark.special) continue;
    const size_t found = pending.find(mark.text);
    if (found < at) {
      at = found;
      first = &mark;
    }
    held = std::max(held, Overlap(pending, mark.text));
  }
  const bool found = at != std::string_view::npos;
  const size_t said = found ? at : pending.size() - held;
  Say(OutputPiece::Kind::kReasoning, pending.substr(0, said));
  pending_.erase(0, said);
  if (!found) return false;
  AtMark();
  if (first->act == Act::kBeginCall || first->act == Act::kAround) {
    state_ = State::kText;
    return true;
  }
  pending_.erase(0, first->text.size());
  if (first != &end) return true;
  state_ = State::kLead;
  lead_ = LeadOfContent(/*reasoning=*/false);
  return true;
}

std::vector<OutputPiece> OutputParser::Finish() {
  if (state_ == State::kBody && begun_by_.empty()) {
    malformed_ += is_plausible_ ? 1 : 0;
    LookAgain();
    Drain();
  }
  // Another call may begin in one that is malformed.
  while (state_ == State::kBody) {
    FinishBody();
    Drain();
  }
  if (state_ == State::kLead) state_ = lead_.otherwise;
  const bool inside = state_ == State::kReasoning;
  Say(inside ? OutputPiece::Kind::kReasoning : OutputPiece::Kind::kContent, WithoutMarks(pending_));
  pending_.clear();
  if (!fresh_ && !spaces_.empty()) {
    fresh_ = true;
    out_.push_back({spaces_kind_, std::exchange(spaces_, {}), {}});
  }
  return std::exchange(out_, {});
}

void OutputParser::AtMark() {
  spaces_.clear();
  fresh_ = true;
}

// White space at the end is held: it is dropped if a mark follows.
void OutputParser::Say(OutputPiece::Kind kind, std::string_view text) {
  if (text.empty()) return;
  const size_t end = text.find_last_not_of(kSpaces) + 1;
  spaces_kind_ = kind;
  if (end == 0) {
    if (!fresh_) spaces_ += text;
    return;
  }
  std::string said = std::exchange(spaces_, std::string(text.substr(end)));
  text = text.substr(0, end);
  if (fresh_) text = text.substr(text.find_first_not_of(kSpaces));
  fresh_ = false;
  said += text;
  if (!out_.empty() && out_.back().kind == kind) {
    out_.back().text += said;
  } else {
    out_.push_back({kind, std::move(said), {}});
  }
}

std::string OutputParser::WithoutMarks(std::string_view text) const {
  std::string without;
  while (!text.empty()) {
    const auto mark = std::find_if(options_->special_marks.begin(), options_->special_marks.end(),
                                   [&](const std::string& one) { return text.starts_with(one); });
    const bool found = mark != options_->special_marks.end();
    if (!found) without += text.front();
    text.remove_prefix(found ? mark->size() : 1);
  }
  return without;
}

}  // namespace baton::chat
