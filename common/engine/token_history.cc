#include "common/engine/token_history.h"

#include <algorithm>

namespace baton {

void TokenHistory::SetPrompt(std::span<const int32_t> tokens) {
  prompt_.assign(tokens.begin(), tokens.end());
  std::sort(prompt_.begin(), prompt_.end());
  prompt_.erase(std::unique(prompt_.begin(), prompt_.end()), prompt_.end());
  prompt_.shrink_to_fit();
}

bool TokenHistory::InPrompt(int32_t token) const {
  return std::binary_search(prompt_.begin(), prompt_.end(), token);
}

}  // namespace baton
