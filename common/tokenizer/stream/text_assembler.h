// One request's output text: detokenization and stop strings behind one door.
#ifndef COMMON_TOKENIZER_STREAM_TEXT_ASSEMBLER_H_
#define COMMON_TOKENIZER_STREAM_TEXT_ASSEMBLER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer.h"

namespace baton {

// Token ids to text as they are generated. Tokens are bytes, so one may end inside a character;
// what comes out never does.

// The pieces of one generation put together are Tokenizer::Decode of all its ids. One thread.
class IncrementalDetokenizer {
 public:
  // `tokenizer` must outlive this. `kept`: special tokens that are shown all the same, a few.
  IncrementalDetokenizer(const Tokenizer* tokenizer, bool skip_special,
                         std::vector<int32_t> kept = {})
      : tokenizer_(tokenizer), skip_special_(skip_special), kept_(std::move(kept)) {}

  // The characters that `id` completes, perhaps none. Bytes that can't become a character come out
  // as U+FFFD at once. An id without token adds nothing: models pad their vocabulary and may sample
  // from the padding.
  std::string Append(int32_t id);

  // The end of the text: U+FFFD for a character that was begun and not completed, else nothing.
  std::string Flush();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::vector<int32_t> kept_;
  std::string pending_;  // The beginning of a character: at most 3 bytes between calls.
};

// Stop strings over streamed text. They are matched on text, not on tokens, since a model may cut
// the same text into tokens in many ways.

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

// One thread.
class TextAssembler {
 public:
  using Piece = StopMatcher::Piece;

  struct Options {
    bool skip_special_tokens = true;
    std::vector<int32_t> kept_special_tokens;  // But for these.
    std::vector<std::string> stop;
    // A stop string that is complete within the first `min_tokens` tokens doesn't count.
    int64_t min_tokens = 0;
  };

  // `tokenizer` must outlive this. InvalidField("stop") as StopMatcher::Create.
  static absl::StatusOr<TextAssembler> Create(const Tokenizer* tokenizer, Options options);

  // Takes the next generated token. Returns text to send on now: whole characters, perhaps none,
  // that no stop string can take back. Once `stop` is set the text is complete: stop generating.
  // Later tokens, which a pipeline may still deliver, add nothing.
  Piece Append(int32_t token);

  // The generation ended without stop string: the rest of the text.
  Piece Finish();

  // Characters (code points) of the text so far, with those held back; a character that has begun
  // is not in it. Before an Append: where in the text that token's first character is.
  int64_t characters() const { return characters_; }

 private:
  TextAssembler(IncrementalDetokenizer detokenizer, StopMatcher stops, int64_t min_tokens)
      : detokenizer_(std::move(detokenizer)), stops_(std::move(stops)), min_tokens_(min_tokens) {}

  IncrementalDetokenizer detokenizer_;
  StopMatcher stops_;
  int64_t min_tokens_;
  int64_t tokens_ = 0;
  int64_t characters_ = 0;
};

}  // namespace baton

#endif  // COMMON_TOKENIZER_STREAM_TEXT_ASSEMBLER_H_
