#include "common/tokenizer/stream/incremental_detokenizer.h"

#include <algorithm>

#include "common/tokenizer/words/utf8.h"

namespace baton {

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
