// One request's output text: detokenization and stop strings behind one door.
#ifndef COMMON_TOKENIZER_STREAM_TEXT_ASSEMBLER_H_
#define COMMON_TOKENIZER_STREAM_TEXT_ASSEMBLER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/stream/incremental_detokenizer.h"
#include "common/tokenizer/stream/stop_matcher.h"
#include "common/tokenizer/tokenizer.h"

namespace baton {

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
