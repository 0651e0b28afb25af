// What a process's lease table has been told to take, until nothing writes there any more. On the
// member that plans and on every other one of a chain that is granted KV; an epoch ends with all
// that it has brought, and the next one begins when nothing of it is left.
//
// Grants come from another process, and the table holds those who give them to their promises. So
// each is checked against what came before it; one that makes no sense ends the epoch, since the
// members don't agree any more on what they hold.
#ifndef SERVICES_PREFILL_CORE_MEMBER_GRANTS_H_
#define SERVICES_PREFILL_CORE_MEMBER_GRANTS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "common/kv/head_routes.h"
#include "common/kv/lease_table.h"
#include "common/types/instance.h"

namespace baton::prefill {

// Where a rank takes in KV that others have computed (services/decode/kv_receiver.h). Calls take
// effect in their order; each revoked grant is answered by one KvDrained.
class KvInlet {
 public:
  virtual ~KvInlet() = default;
  virtual void Grant(KvGrant grant) = 0;
  virtual void Revoke(uint32_t slot, uint64_t generation) = 0;
  // Calls `then` when all earlier calls have taken effect, on any thread.
  virtual void After(std::function<void()> then) = 0;
};

struct MemberGrantLimits {
  KvPlace place;
  int kv_heads = 0;  // The model's.
  int page_count = 0;
  int slots = 0;
};

class MemberGrants {
 public:
  // `inlet` is not owned.
  MemberGrants(const MemberGrantLimits& limits, KvInlet* inlet) : limits_(limits), inlet_(inlet) {}

  absl::Status Grant(const KvGrant& grant);
  absl::Status Revoke(uint32_t slot, uint64_t generation);
  // What the table says of them.
  void Heard(const LeaseEvent& event);
  // Revokes what stands.
  void EndEpoch();
  KvInlet& inlet() { return *inlet_; }

  bool AtRest() const { return held_.empty(); }
  int held_pages() const;
  uint64_t newest_generation() const { return newest_generation_; }

 private:
  struct Held {
    int pages = 0;  // The grant's own.
    bool revoked = false;
  };
  absl::Status Check(const KvGrant& grant) const;

  const MemberGrantLimits limits_;
  KvInlet* const inlet_;
  std::map<std::pair<uint32_t, uint64_t>, Held> held_;  // By slot and generation; until drained.
  uint64_t newest_generation_ = 0;                      // Over all epochs.
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_CORE_MEMBER_GRANTS_H_
