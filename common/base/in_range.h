// The check of a number that comes from a peer.
#ifndef COMMON_BASE_IN_RANGE_H_
#define COMMON_BASE_IN_RANGE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace baton {

// INVALID_ARGUMENT that names the field unless `value` is from `low` to `high`, both included.
template <typename T>
absl::Status InRange(T value, T low, T high, const std::string& field) {
  if (value >= low && value <= high) return absl::OkStatus();
  return InvalidField(field, absl::StrCat(value, ", expected ", low, " to ", high));
}

}  // namespace baton

#endif  // COMMON_BASE_IN_RANGE_H_
