// What v1::SamplingParams may say: the one table of ranges, for a client's request and for a
// peer's.
#ifndef COMMON_ENGINE_SAMPLING_CHECK_SAMPLING_H_
#define COMMON_ENGINE_SAMPLING_CHECK_SAMPLING_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "common/types/limits.h"
#include "proto/baton/v1/common.pb.h"

namespace baton {

struct SamplingBounds {
  int vocab_size = 0;
  int64_t default_max_tokens = 0;  // Where a request has no max_tokens.
  size_t most_stop_token_ids = kMaxStopTokenIds;
};

// What errors call a field of the message.
using SamplingName = std::function<std::string(std::string_view field)>;

// INVALID_ARGUMENT, naming the first field that is out of its range. Fields that are absent are not
// looked at. Whether a structure can be kept to is not asked.
absl::Status CheckSampling(const v1::SamplingParams& sampling, const SamplingBounds& bounds,
                           const SamplingName& name);

// The same of one number, before it is narrowed to the field's type. `called`: as errors call it.
absl::Status CheckSamplingNumber(std::string_view field, int64_t value, const std::string& called);

}  // namespace baton

#endif  // COMMON_ENGINE_SAMPLING_CHECK_SAMPLING_H_
