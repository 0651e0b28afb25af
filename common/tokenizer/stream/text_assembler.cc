#include "common/tokenizer/stream/text_assembler.h"

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

}  // namespace baton
