// Why a complete answer ended. A failure is a status, not a reason.
#ifndef COMMON_TYPES_FINISH_REASON_H_
#define COMMON_TYPES_FINISH_REASON_H_

#include <cstdint>

namespace baton {

enum class FinishReason : uint8_t {
  kStop,    // End of sequence, a stop id or a stop string.
  kLength,  // max_tokens or the context length.
  kAbort,   // The client's wish; the router's word alone: a decode service never ends so.
};

}  // namespace baton

#endif  // COMMON_TYPES_FINISH_REASON_H_
