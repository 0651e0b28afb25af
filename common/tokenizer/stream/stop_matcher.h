// Stop strings over streamed text. They are matched on text, not on tokens, since a model may cut
// the same text into tokens in many ways.
#ifndef COMMON_TOKENIZER_STREAM_STOP_MATCHER_H_
#define COMMON_TOKENIZER_STREAM_STOP_MATCHER_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

// The stop string whose end comes first wins, the longest of those that end together. Hence the
// result doesn't depend on how the text arrives. One thread.
class StopMatcher {
 public:
  static constexpr size_t kMaxStops = 64;
  static constexpr size_t kMaxStopBytes = 4096;

  // InvalidField("stop") for an empty stop string, one that is not UTF-8, too long or too many.
  static absl::StatusOr<StopMatcher> Create(std::vector<std::string> stops);

  struct Piece {
    std::string text;                 // final: never part of a stop string
    std::optional<std::string> stop;  // the stop string that ended the text
  };

  // Takes `text` (whole characters) and returns what is now known not to belong to a stop string.
  // Text that may be the beginning of one is held back. Without `may_stop` a stop string that ends
  // in `text` doesn't count, though one that begins in it still may. After a match nothing more
  // comes out.
  Piece Append(std::string_view text, bool may_stop = true);

  // The end of the text: what was held back.
  std::string Flush();

 private:
  // Knuth, Morris and Pratt's automaton for one stop string: O(1) amortized per byte, where
  // searching the held text again for each token would be quadratic in long stop strings.
  struct Stop {
    std::string text;
    std::vector<size_t> fallback;  // [i]: the longest proper border of the first i bytes
    size_t matched = 0;            // bytes of `text` that the input ends with
  };

  static void Advance(Stop* stop, char byte);

  std::vector<Stop> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace baton

#endif  // COMMON_TOKENIZER_STREAM_STOP_MATCHER_H_
