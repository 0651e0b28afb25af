// Token ids to text as they are generated. Tokens are bytes, so one may end inside a character;
// what comes out never does.
#ifndef COMMON_TOKENIZER_STREAM_INCREMENTAL_DETOKENIZER_H_
#define COMMON_TOKENIZER_STREAM_INCREMENTAL_DETOKENIZER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/tokenizer/tokenizer.h"

namespace baton {

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

}  // namespace baton

#endif  // COMMON_TOKENIZER_STREAM_INCREMENTAL_DETOKENIZER_H_
