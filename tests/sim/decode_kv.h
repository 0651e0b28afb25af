// How a rank of a simulated decode service takes KV in: the real lease table on its own time line,
// and the bytes that it lets in, which are compared slot by slot with what prefill should have
// sent. Plays services/decode/kv_receiver.
#ifndef TESTS_SIM_DECODE_KV_H_
#define TESTS_SIM_DECODE_KV_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/kv/lease_table.h"
#include "services/prefill/core/member_grants.h"
#include "tests/sim/lease_witness.h"
#include "tests/sim/oracle.h"
#include "tests/sim/sim_memory.h"
#include "tests/sim/topology.h"
#include "tests/sim/world.h"

namespace baton::sim {

// The bytes of a tensor message: slots, one after the other.
using SimPayload = std::shared_ptr<const std::vector<uint64_t>>;

class DecodeKv final : public prefill::KvInlet {
 public:
  struct Hooks {
    // Raises an event in the process's core, on its time line.
    std::function<void(const LeaseEvent&)> raise;
    // The sequence that owns the grant; nullptr: none any more.
    std::function<const Oracle::Sequence*(uint64_t generation)> sequence_of;
    // Whether a running step uses the page.
    std::function<bool(int page)> in_step;
  };
  DecodeKv(World& world, const Topology& topology, int node, InstanceRef self, SimMemory& memory,
           Hooks hooks);

  // The timer. The process lives by then.
  void Start() { LeaseTick(); }

  void Grant(KvGrant grant) override;
  void Revoke(uint32_t slot, uint64_t generation) override;
  void After(std::function<void()> then) override;

  // Data plane. `again`: the message has come before, or was for a former life.
  void ReceiveKv(const KvDataHeader& header, const SimPayload& payload, bool corrupt, bool again);
  void ReceiveCommit(const KvCommit& commit, bool again);
  void ReceiveHeartbeat(const InstanceRef& writer);

  // The writer has delivered its part, or it is no longer waited for.
  bool HasKv(const Ticket& ticket, const InstanceRef& writer) const;
  const LeaseTable& leases() const { return leases_; }

 private:
  // Layer `source` of a message's part of a page goes to the bits of the slots of `layer`.
  struct Landing {
    int source = 0;
    int layer = 0;
    uint64_t bits = 0;
  };
  std::vector<Landing> LandingsOf(const KvPlacement& placement) const;
  void Place(const KvPlacement& placement, const std::vector<uint64_t>& payload, size_t first,
             size_t count);
  // Asks the table for what it must refuse, just before it is asked for what is `like` it.
  void LetIntrudersWrite(const KvDataHeader& like);
  void LetIntrudersCommit(const KvCommit& like);
  void LetIntrudersContradict(const KvCommit& like);
  void LetIntrudersRevoke(uint32_t slot, uint64_t generation, std::vector<LeaseEvent>& events);
  // In a writer's name, as a fault: the grant ends for it.
  void LetIntrudersForge(const KvCommit& like);
  void CommitOf(const KvCommit& commit);
  // Once a grant is committed: whether its pages hold what prefill should have sent.
  void CheckHandedOver(const KvCommitted& committed);
  void ToCore(const std::vector<LeaseEvent>& events);
  void Send(const KvReceipt& receipt);
  void Greet(const InstanceRef& writer);
  void ToLeaseTable(const char* label, std::function<void(std::vector<LeaseEvent>&)> run);
  void LeaseTick();

  World& world_;
  const Topology& topology_;
  const int node_;
  const InstanceRef self_;
  const TensorRank rank_;
  const LayerRange layers_;
  const Hooks hooks_;
  LeaseTable leases_;
  LeaseWitness witness_;
  SimMemory& memory_;
  std::map<uint64_t, std::vector<int>> granted_;  // Generation -> pages of the prompt.
  int64_t core_inbox_us_ = 0;                     // Keeps each direction in order.
  int64_t lease_inbox_us_ = 0;
};

}  // namespace baton::sim

#endif  // TESTS_SIM_DECODE_KV_H_
