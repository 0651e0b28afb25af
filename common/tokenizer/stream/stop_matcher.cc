#include "common/tokenizer/stream/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/tokenizer/words/utf8.h"

namespace baton {
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

}  // namespace baton
