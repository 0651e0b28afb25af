// Which workers listen for changes of their members: at most one watch each, by the RPC's number. A
// watch carries notices only, never the members, so that a lost or late one costs an interval of
// heartbeats and no more. Plain data of RouterCore, which decides.
#ifndef SERVICES_ROUTER_CORE_WATCHES_H_
#define SERVICES_ROUTER_CORE_WATCHES_H_

#include <cstdint>
#include <map>
#include <optional>

#include "common/types/instance.h"

namespace baton::router {

class Watches {
 public:
  // Returns the call that this one replaces, if there is one.
  std::optional<uint64_t> Open(const InstanceRef& instance, uint64_t rpc_id);
  // The worker whose watch `call` is; it has none from now on.
  std::optional<InstanceRef> Close(uint64_t rpc_id);
  std::optional<uint64_t> RpcOf(const InstanceRef& instance) const;
  const std::map<InstanceRef, uint64_t>& rpc_ids() const { return rpc_of_; }

 private:
  std::map<InstanceRef, uint64_t> rpc_of_;
  std::map<uint64_t, InstanceRef> instance_of_;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_WATCHES_H_
