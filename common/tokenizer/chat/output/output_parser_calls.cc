// The calls of an OutputParser: where the text of one ends, and what becomes of it.
#include <algorithm>
#include <utility>

#include "common/tokenizer/chat/output/output_parser.h"

namespace baton::chat {
namespace {

constexpr size_t kMaxHeaderBytes = 512;  // Mistral's name before the arguments.
constexpr int kMaxPassedEnds = 8;        // By one call.
constexpr int kMaxBegunAgain = 8;        // In one answer: each reads the text again.

}  // namespace

void OutputParser::BeginCall(std::string_view mark) {
  state_ = State::kBody;
  begun_by_ = mark;
  scanned_ = 0;
  is_plausible_ = !mark.empty();
  scanner_.reset();
  passed_ends_ = 0;
}

bool OutputParser::StepBody() {
  return tool_marks_.end.empty() ? StepValueBody() : StepMarkedBody();
}

// Up to the first end mark behind which the body is whole. One in a string is the string's text,
// and a string that is never closed must not hide what follows for long.
bool OutputParser::StepMarkedBody() {
  const std::string_view end = tool_marks_.end;
  const size_t at = pending_.find(end, scanned_);
  if (at != std::string::npos && at <= OutputOptions::kMaxCallBytes) {
    if (TakeCalls(at, end.size())) return true;
    const std::string_view body = std::string_view(pending_).substr(0, at);
    if (passed_ends_ < kMaxPassedEnds && EndsInString(options_->tools, body)) {
      if (passed_ends_++ == 0) first_end_ = at;
      scanned_ = at + end.size();
      return true;
    }
    RefuseMarked(passed_ends_ > 0 ? first_end_ : at, end.size());
    return true;
  }
  if (pending_.size() >= OutputOptions::kMaxCallBytes + end.size()) {
    if (passed_ends_ > 0) {
      RefuseMarked(first_end_, end.size());
    } else {
      GiveBack(OutputOptions::kMaxCallBytes);
    }
    return true;
  }
  scanned_ = std::max(scanned_, pending_.size() - std::min(pending_.size(), end.size() - 1));
  return false;
}

// The body is white space, for Mistral perhaps a name, and a value in brackets.
bool OutputParser::StepValueBody() {
  const std::string_view pending = pending_;
  if (!scanner_.has_value()) {
    size_t begin = pending.find_first_not_of(kSpaces);
    if (begin == std::string_view::npos) begin = pending.size();
    const bool has_name = options_->tools == ToolFormat::kMistral && begin < pending.size() &&
                          pending[begin] != '[' && pending[begin] != '{';
    if (has_name) begin = std::min(pending.find('{', begin), pending.size());
    if (begin > kMaxHeaderBytes) {
      GiveBack(kMaxHeaderBytes);
      return true;
    }
    if (begin == pending.size()) return false;
    if (pending[begin] != '[' && pending[begin] != '{') {
      GiveBack(begin);
      return true;
    }
    scanned_ = begin;
    scanner_.emplace(/*python=*/options_->tools == ToolFormat::kPythonic);
  }
  if (!is_plausible_) {
    switch (MayBeCall(options_->tools, pending)) {
      case Plausible::kNo:
        LookAgain();
        return true;
      case Plausible::kUnknown:
        return false;
      case Plausible::kYes:
        is_plausible_ = true;
    }
  }
  const std::optional<size_t> end = scanner_->End(pending.substr(scanned_));
  if (end.has_value() && scanned_ + *end <= OutputOptions::kMaxCallBytes) {
    EndCall(scanned_ + *end, 0);
    return true;
  }
  if (pending_.size() < OutputOptions::kMaxCallBytes) return false;
  if (begun_by_.empty()) {
    ++malformed_;
    LookAgain();
  } else {
    GiveBack(OutputOptions::kMaxCallBytes);
  }
  return true;
}

bool OutputParser::TakeCalls(size_t length, size_t end) {
  const std::string_view body = std::string_view(pending_).substr(0, length);
  const bool only_offered = begun_by_.empty();
  auto calls = ParseCalls(options_->tools, body, options_->offered, only_offered);
  const size_t more = calls.has_value() ? calls->size() : 0;
  if (more == 0 || calls_ + more > OutputOptions::kMaxCalls) return false;
  pending_.erase(0, length + end);
  AtMark();
  for (ToolCall& call : *calls) {
    if (calls_ > 0 && !options_->parallel_calls) break;
    ++calls_;
    out_.push_back({OutputPiece::Kind::kCall, "", std::move(call)});
  }
  state_ = State::kText;
  if (!needs_no_mark() || options_->tools == ToolFormat::kPythonic) return true;
  state_ = State::kLead;
  lead_ = {.value = true, .after_call = true};
  return true;
}

void OutputParser::EndCall(size_t length, size_t end) {
  if (TakeCalls(length, end)) return;
  if (!begun_by_.empty()) return GiveBack(length + end);
  // Without a mark this is content; it is malformed only if it calls a function that is unknown.
  const std::string_view body = std::string_view(pending_).substr(0, length);
  if (ParseCalls(options_->tools, body, options_->offered, false).has_value()) ++malformed_;
  LookAgain();
}

void OutputParser::RefuseMarked(size_t length, size_t end) {
  const std::string_view body = std::string_view(pending_).substr(0, length);
  size_t first = std::string_view::npos;
  size_t last = 0;
  for (const std::string_view mark : tool_marks_.begin) {
    const size_t found = body.find(mark);
    if (found == std::string_view::npos) continue;
    first = std::min(first, found);
    last = std::max(last, body.rfind(mark));
  }
  if (first == std::string_view::npos) {
    GiveBack(length + end);
  } else if (begun_again_ >= kMaxBegunAgain) {
    GiveBack(last);
  } else {
    ++begun_again_;
    if (!TakeCalls(first, 0)) GiveBack(first);
  }
  Unread();
}

// The mark at the end may be missing: it is often a token that ends the text as well. What may have
// been cut off is no call, lest a tool be run with half of its arguments.
void OutputParser::FinishBody() {
  if (tool_marks_.end.empty()) return GiveBack(pending_.size());
  if (passed_ends_ > 0) return RefuseMarked(first_end_, tool_marks_.end.size());
  if (ShowsItsEnd(pending_) && TakeCalls(pending_.size(), 0)) return;
  RefuseMarked(pending_.size(), 0);
}

void OutputParser::GiveBack(size_t length) {
  ++malformed_;
  // A limit may stand within a character.
  const auto cuts = [this](size_t at) {
    return at < pending_.size() && (static_cast<unsigned char>(pending_[at]) & 0xc0) == 0x80;
  };
  while (length > 0 && cuts(length)) --length;
  const std::string text = std::string(begun_by_) + pending_.substr(0, length);
  pending_.erase(0, length);
  Say(OutputPiece::Kind::kContent, WithoutMarks(text));
  state_ = State::kText;
}

void OutputParser::LookAgain() {
  only_marked_ = true;  // Also so that no text is looked at a third time.
  state_ = State::kText;
  Unread();
}

void OutputParser::Unread() {
  taken_ -= pending_.size();
  pending_.clear();
}

}  // namespace baton::chat
