#include "common/config/router_list.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/net/host.h"

namespace baton::config {

absl::StatusOr<std::vector<std::string>> ParseRouters(const std::string& router_address) {
  auto routers = net::SplitHostPorts(router_address);
  if (!routers.ok()) {
    return InvalidField("router_address", absl::StrCat("got ", routers.status().message()));
  }
  for (const std::string& router : *routers) {
    if (net::SplitHostPort(router)->second == 0) {
      return InvalidField("router_address",
                          absl::StrCat("got '", router, "'; expected a port from 1 to 65535"));
    }
  }
  if (routers->size() > static_cast<size_t>(kMaxListedRouters)) {
    return InvalidField("router_address", absl::StrCat("names ", routers->size(),
                                                       " routers; a worker is a member of ",
                                                       kMaxListedRouters, " at most"));
  }
  return routers;
}

}  // namespace baton::config
