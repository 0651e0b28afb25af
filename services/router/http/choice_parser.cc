#include "services/router/http/choice_parser.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"

namespace baton::router {
namespace {

// Fowler, Noll and Vo's hash (FNV-1a), which is the same in every build.
uint64_t HashOf(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

}  // namespace

ChoiceParser::ChoiceParser(std::shared_ptr<const chat::OutputOptions> options,
                           bool include_reasoning, const std::string& answer_id, size_t choice)
    : include_reasoning_(include_reasoning),
      short_ids_(options->tools == chat::ToolFormat::kMistral),
      seed_(Mix64(HashOf(answer_id)) ^ choice),
      parser_(std::move(options)) {}

std::vector<ChoicePart> ChoiceParser::Append(const std::string& text, size_t tokens) {
  const bool inside = parser_.in_reasoning();
  std::vector<ChoicePart> parts;
  std::vector<chat::OutputPiece> pieces = parser_.Append(text);
  undecided_tokens_ += tokens;
  if (inside || parser_.in_reasoning()) {
    reasoning_tokens_ += std::exchange(undecided_tokens_, 0);
  } else if (!pieces.empty()) {
    undecided_tokens_ = 0;
  }
  Add(std::move(pieces), parts);
  return parts;
}

std::vector<ChoicePart> ChoiceParser::Finish(const std::string& text) {
  std::vector<ChoicePart> parts = Append(text, 0);
  Add(parser_.Finish(), parts);
  return parts;
}

void ChoiceParser::Add(std::vector<chat::OutputPiece> pieces, std::vector<ChoicePart>& parts) {
  for (chat::OutputPiece& piece : pieces) {
    switch (piece.kind) {
      case chat::OutputPiece::Kind::kContent:
        parts.emplace_back().text = std::move(piece.text);
        break;
      case chat::OutputPiece::Kind::kReasoning:
        if (include_reasoning_) parts.emplace_back().reasoning = std::move(piece.text);
        break;
      case chat::OutputPiece::Kind::kCall: {
        const std::string id = IdOf(piece.call);
        parts.emplace_back().calls = {{begun_, id, std::move(piece.call.name), ""}};
        parts.emplace_back().calls = {{begun_, "", "", std::move(piece.call.arguments)}};
        ++begun_;
      }
    }
  }
}

std::string ChoiceParser::IdOf(const chat::ToolCall& call) const {
  if (!call.id.empty()) return call.id;
  const uint64_t first = Mix64(seed_ + (static_cast<uint64_t>(begun_) << 32));
  const std::string digits =
      absl::StrCat(absl::Hex(first, absl::kZeroPad16), absl::Hex(Mix64(first), absl::kZeroPad16));
  // Mistral's templates refuse ids that are not nine letters and digits.
  return short_ids_ ? digits.substr(0, 9) : "call_" + digits.substr(0, 24);
}

void Merge(ChoicePart from, ChoicePart& to) {
  to.text += from.text;
  to.reasoning += from.reasoning;
  for (CallPart& call : from.calls) {
    if (call.id.empty()) {
      to.calls.back().arguments += call.arguments;
    } else {
      to.calls.push_back(std::move(call));
    }
  }
}

}  // namespace baton::router
