#include "common/tokenizer/stream/text_assembler.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/tokenizer/words/utf8.h"

namespace baton {

absl::StatusOr<TextAssembler> TextAssembler::Create(const Tokenizer* tokenizer, Options options) {
  BATON_ASSIGN_OR_RETURN(StopMatcher stops, StopMatcher::Create(std::move(options.stop)));
  return TextAssembler(IncrementalDetokenizer(tokenizer, options.skip_special_tokens,
                                              std::move(options.kept_special_tokens)),
                       std::move(stops), options.min_tokens);
}

TextAssembler::Piece TextAssembler::Append(int32_t token) {
  ++tokens_;
  const std::string text = detokenizer_.Append(token);
  characters_ += static_cast<int64_t>(CountCharacters(text));
  return stops_.Append(text, /*may_stop=*/tokens_ > min_tokens_);
}

TextAssembler::Piece TextAssembler::Finish() {
  Piece piece = stops_.Append(detokenizer_.Flush(), /*may_stop=*/tokens_ > min_tokens_);
  piece.text.append(stops_.Flush());
  return piece;
}

namespace {

std::vector<size_t> Borders(std::string_view text) {
  std::vector<size_t> border(text.size() + 1, 0);
  size_t length = 0;
  for (size_t i = 1; i < text.size(); ++i) {
    while (length > 0 && text[i] != text[length]) length = border[length];
    if (text[i] == text[length]) ++length;
    border[i + 1] = length;
  }
  return border;
}

}  // namespace

absl::StatusOr<StopMatcher> StopMatcher::Create(std::vector<std::string> stops) {
  if (stops.size() > kMaxStops) {
    return InvalidField("stop",
                        Concat(stops.size(), " stop strings; at most ", kMaxStops, " are allowed"));
  }
  StopMatcher matcher;
  for (std::string& stop : stops) {
    if (stop.empty()) return InvalidField("stop", "a stop string must not be empty");
    if (stop.size() > kMaxStopBytes) {
      return InvalidField("stop", Concat("stop string of ", stop.size(), " bytes; at most ",
                                         kMaxStopBytes, " are allowed"));
    }
    if (FirstInvalidUtf8(stop).has_value()) {
      return InvalidField("stop", "a stop string is not UTF-8");
    }
    std::vector<size_t> fallback = Borders(stop);
    matcher.stops_.push_back({std::move(stop), std::move(fallback)});
  }
  return matcher;
}

void StopMatcher::Advance(Stop* stop, char byte) {
  while (stop->matched > 0 && stop->text[stop->matched] != byte) {
    stop->matched = stop->fallback[stop->matched];
  }
  if (stop->text[stop->matched] == byte) ++stop->matched;
}

StopMatcher::Piece StopMatcher::Append(std::string_view text, bool may_stop) {
  if (stopped_) return {};
  if (stops_.empty()) return {std::string(text), std::nullopt};
  const size_t held_before = held_.size();
  held_.append(text);
  for (size_t i = held_before; i < held_.size(); ++i) {
    const Stop* longest = nullptr;
    for (Stop& stop : stops_) {
      Advance(&stop, held_[i]);
      if (stop.matched < stop.text.size()) continue;
      if (longest == nullptr || stop.text.size() > longest->text.size()) longest = &stop;
      stop.matched = stop.fallback[stop.matched];
    }
    if (longest != nullptr && may_stop) {
      stopped_ = true;
      Piece piece{held_.substr(0, i + 1 - longest->text.size()), longest->text};
      held_.clear();
      return piece;
    }
  }
  size_t keep = 0;
  for (const Stop& stop : stops_) keep = std::max(keep, stop.matched);
  Piece piece{held_.substr(0, held_.size() - keep), std::nullopt};
  held_.erase(0, piece.text.size());
  return piece;
}

std::string StopMatcher::Flush() { return std::exchange(held_, {}); }

std::string IncrementalDetokenizer::Append(int32_t id) {
  const bool kept = std::find(kept_.begin(), kept_.end(), id) != kept_.end();
  if (skip_special_ && !kept && tokenizer_->IsSpecial(id)) return {};
  pending_.append(tokenizer_->TokenBytes(id));
  std::string text;
  pending_.erase(0, AppendCharacters(pending_, &text));
  return text;
}

std::string IncrementalDetokenizer::Flush() {
  if (pending_.empty()) return {};
  pending_.clear();
  return std::string(kReplacementCharacter);
}

}  // namespace baton
