#include "common/tokenizer/stream/incremental_detokenizer.h"

#include "common/tokenizer/words/utf8.h"

namespace baton {

std::string IncrementalDetokenizer::Append(int32_t id) {
  if (skip_special_ && tokenizer_->IsSpecial(id)) return {};
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
