// The chains and decode services that can serve now, each side by itself, by slots. Any two make a
// pair, but those that could not connect a moment ago; in a large cluster pairs are too many to
// list. Membership keeps it, Pairing follows its changes.
#ifndef SERVICES_ROUTER_CORE_ROSTER_H_
#define SERVICES_ROUTER_CORE_ROSTER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "common/types/instance.h"
#include "common/types/ticket.h"
#include "services/router/core/pair.h"
#include "services/router/core/worker_info.h"

namespace baton::router {

struct Worker;

// A chain, a decode service, or a colocated chain, which is both.
struct Side {
  Pair pair;  // What is known of one side alone; of a colocated chain all.
  int kv_heads = 1;
  int decode_ranks = 1;  // In each stage. Both of decode services.
};

// What the workers in all the places of a grid make together. Pure.
Side SideOf(const GridName& name, const std::vector<const Worker*>& places);

// The pair of a chain that does not decode and a decode service. Pure.
Pair Join(const Side& chain, const Side& decode);

// One role's. A slot is its side's from the first Put to Remove.
class SideTable {
 public:
  // The side can serve, from now on or as before, perhaps changed.
  size_t Put(const GridName& name, Side side);
  // The side cannot serve; it may again.
  void Rest(const GridName& name);
  // The side is gone.
  void Remove(const GridName& name);

  // Null: the slot's side cannot serve, or there is none.
  const Side* At(size_t slot) const {
    return slot < sides_.size() && sides_[slot].ready ? &sides_[slot].side : nullptr;
  }
  bool Gone(size_t slot) const { return slot >= sides_.size() || !sides_[slot].used; }
  size_t slots() const { return sides_.size(); }
  size_t ready() const { return ready_count_; }
  // Over all that can serve; 0: there is none.
  int64_t most_context() const { return contexts_.empty() ? 0 : contexts_.rbegin()->first; }
  // The slots of all that can serve, in the order of their names.
  std::vector<size_t> ReadySlots() const;
  // The slots that have changed since the last call, in order.
  std::vector<size_t> TakeChanged();

 private:
  struct Slot {
    Side side;
    bool used = false;
    bool ready = false;
  };

  void CountOut(const Slot& slot);

  std::vector<Slot> sides_;
  std::vector<size_t> free_;
  std::map<GridName, size_t> slot_of_;
  std::set<size_t> changed_;
  std::map<int64_t, int> contexts_;  // How many that can serve have so much context.
  size_t ready_count_ = 0;
};

struct Roster {
  SideTable chains;  // Colocated ones too.
  SideTable decodes;

  // Pairs that could not connect, by the incarnations of stage 0 and of decode's rank 0.
  std::set<std::pair<uint64_t, uint64_t>> unconnected;

  SideTable& TableOf(Role role) { return role == Role::kPrefill ? chains : decodes; }
  // Whether chain and decode service may be a pair. Colocated chains are one by themselves.
  bool MayPair(const Side& chain, const Side& decode) const {
    if (chain.pair.colocated()) return false;
    return unconnected.empty() || !unconnected.contains({chain.pair.chain.stage0.incarnation,
                                                         decode.pair.decode.incarnation});
  }
  // Calls `visit(chain slot, decode slot)` for every pair until it returns false, in the order
  // of names; of a colocated chain with its own slot twice.
  template <typename Visit>
  void VisitPairs(Visit visit) const;
  // Pairs that can serve, in the order of names: for small clusters.
  std::vector<Pair> Pairs() const;
  size_t CountPairs() const;
  bool HasPair() const;
};

template <typename Visit>
void Roster::VisitPairs(Visit visit) const {
  const std::vector<size_t> ready_decodes = decodes.ReadySlots();
  for (const size_t chain : chains.ReadySlots()) {
    const Side& side = *chains.At(chain);
    if (side.pair.colocated()) {
      if (!visit(chain, chain)) return;
      continue;
    }
    for (const size_t decode : ready_decodes) {
      if (MayPair(side, *decodes.At(decode)) && !visit(chain, decode)) return;
    }
  }
}

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_ROSTER_H_
