// Which calls the members' leases stand on (Cluster.Lease): at most one each, by the RPC's number.
// Plain data of RouterCore, which decides.
#ifndef SERVICES_ROUTER_CORE_LEASES_H_
#define SERVICES_ROUTER_CORE_LEASES_H_

#include <cstdint>
#include <map>
#include <optional>

#include "common/types/instance.h"

namespace baton::router {

class Leases {
 public:
  struct Call {
    uint64_t rpc_id = 0;
    uint64_t number = 0;   // RegisterRequest.call_number.
    bool heard = false;    // It has brought a heartbeat.
    bool list_due = true;  // Its worker has not been told of its members as they are now.
  };

  // Returns the call that this one replaces, if there is one.
  std::optional<uint64_t> Open(const InstanceRef& instance, uint64_t rpc_id, uint64_t number);
  void Close(uint64_t rpc_id);
  // Whose call it is.
  std::optional<InstanceRef> WorkerOf(uint64_t rpc_id) const;
  Call* Find(const InstanceRef& instance);  // nullptr: it has none.

 private:
  std::map<InstanceRef, Call> calls_;
  std::map<uint64_t, InstanceRef> workers_;  // By RPC.
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_LEASES_H_
