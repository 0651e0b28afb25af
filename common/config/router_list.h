// The routers that a worker is told to register with.
#ifndef COMMON_CONFIG_ROUTER_LIST_H_
#define COMMON_CONFIG_ROUTER_LIST_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::config {

inline constexpr int kMaxListedRouters = 16;

// "10.0.0.1:30002, routers:30002" as its parts, each HOST:PORT (common/net/host.h); none for an
// empty text: then routers announce themselves. Errors name router_address.
absl::StatusOr<std::vector<std::string>> ParseRouters(const std::string& router_address);

}  // namespace baton::config

#endif  // COMMON_CONFIG_ROUTER_LIST_H_
