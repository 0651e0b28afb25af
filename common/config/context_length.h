// How long a prompt and its answer may be together.
#ifndef COMMON_CONFIG_CONTEXT_LENGTH_H_
#define COMMON_CONFIG_CONTEXT_LENGTH_H_

#include <algorithm>
#include <cstdint>

#include "proto/baton/v1/config.pb.h"

namespace baton::config {

// Tokens: --context-length where it is given, and never more than the model's `model_tokens`.
inline int ContextTokens(const v1::Options& options, int model_tokens) {
  const int64_t asked = options.context_length();
  return asked == 0 ? model_tokens : static_cast<int>(std::min<int64_t>(asked, model_tokens));
}

}  // namespace baton::config

#endif  // COMMON_CONFIG_CONTEXT_LENGTH_H_
