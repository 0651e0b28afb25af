// How a status reads in a log.
#ifndef COMMON_BASE_STATUS_TEXT_H_
#define COMMON_BASE_STATUS_TEXT_H_

#include <string>

#include "absl/status/status.h"

namespace baton {

// "UNAVAILABLE: the connection broke (decode leg, d0)": leg and instance (status.h) only where they
// are known and the message does not name them.
std::string DescribeStatus(const absl::Status& status);

}  // namespace baton

#endif  // COMMON_BASE_STATUS_TEXT_H_
