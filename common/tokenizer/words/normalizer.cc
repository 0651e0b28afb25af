#include "common/tokenizer/words/normalizer.h"

#include <utility>

#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/tokenizer/words/unicode.h"
#include "common/tokenizer/words/utf8.h"

namespace baton {
namespace {

using Kind = NormalizerStep::Kind;

std::string StripWhiteSpace(std::string_view text, bool left, bool right) {
  if (left) text.remove_prefix(LeadingBytes(text, IsWhiteSpace));
  if (right) text = text.substr(0, TrailingBegin(text, IsWhiteSpace));
  return std::string(text);
}

}  // namespace

absl::StatusOr<Normalizer> Normalizer::Create(const std::vector<NormalizerStep>& steps) {
  Normalizer normalizer;
  for (const NormalizerStep& what : steps) {
    Step step = {what, std::nullopt, std::nullopt};
    if (what.kind == Kind::kCharsmap) {
      BATON_ASSIGN_OR_RETURN(step.charsmap, Charsmap::Create(what.content));
    }
    if (what.kind == Kind::kReplace) {
      BATON_ASSIGN_OR_RETURN(step.pattern, SplitPattern::Compile(what.pattern));
    }
    normalizer.steps_.push_back(std::move(step));
  }
  return normalizer;
}

absl::StatusOr<std::string> Normalizer::Apply(std::string_view text, size_t max_bytes) const {
  std::string normalized(text);
  for (const Step& step : steps_) {
    BATON_ASSIGN_OR_RETURN(normalized, ApplyStep(step, std::move(normalized), max_bytes));
    if (normalized.size() <= max_bytes) continue;
    return absl::ResourceExhaustedError(
        Concat("the normalized text is larger than ", max_bytes, " bytes"));
  }
  return normalized;
}

absl::StatusOr<std::string> Normalizer::ApplyStep(const Step& step, std::string text,
                                                  size_t max_bytes) {
  switch (step.what.kind) {
    case Kind::kNfc:
      return ToNormalForm(NormalForm::kNfc, text);
    case Kind::kNfd:
      return ToNormalForm(NormalForm::kNfd, text);
    case Kind::kNfkc:
      return ToNormalForm(NormalForm::kNfkc, text);
    case Kind::kNfkd:
      return ToNormalForm(NormalForm::kNfkd, text);
    case Kind::kLowercase:
      return ToLowercase(text);
    case Kind::kStripAccents:
      return WithoutMarks(text);
    case Kind::kStrip:
      return StripWhiteSpace(text, step.what.left, step.what.right);
    case Kind::kPrepend:
      return text.empty() ? std::move(text) : step.what.content + text;
    case Kind::kReplace:
      return step.pattern->Replace(text, step.what.content, max_bytes);
    case Kind::kCharsmap:
      return step.charsmap->Apply(text);
  }
  return text;
}

}  // namespace baton
