// Workers that all fit one another, and what they could serve together. A value that Membership
// builds to compare; it points at workers that its maker keeps.
#ifndef SERVICES_ROUTER_CORE_GROUP_H_
#define SERVICES_ROUTER_CORE_GROUP_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "services/router/core/worker_info.h"

namespace baton::router {

// Which places of which grids are held, and since when. A value that Membership builds to see what
// is whole.
class Grids {
 public:
  // A worker has this place, or will most likely be back in it. The first of a grid says how it is:
  // one of another shape doesn't count for it.
  void Hold(const GridPlace& place, int64_t changed_us = 0);

  // Whether a chain and a decode service are whole, or a colocated chain is.
  bool CanPair() const { return PairChangedUs().has_value(); }
  // When a place of a whole chain and a whole decode service, or of a whole colocated chain,
  // changed last; nullopt: there is no such pair.
  std::optional<int64_t> PairChangedUs() const;

 private:
  struct Places {
    GridPlace shape;  // As the first of them has it.
    std::set<int> held;
    int64_t changed_us = 0;  // Last.
  };
  std::map<GridName, Places> grids_;
};

class Group {
 public:
  // Whether `worker` fits all members and none has its name.
  bool Fits(const WorkerInfo& worker) const;
  // `worker` fits and outlives the group.
  void Add(const WorkerInfo& worker);
  // With the places of those who are away and will most likely be back.
  Grids& grids() { return grids_; }

  // A whole chain and a whole decode service, or a whole colocated chain, are here or expected.
  bool CanPair() const { return grids_.CanPair(); }
  // What a router prefers, in order: who can serve, then who are more.
  std::pair<bool, int> Rank() const { return {CanPair(), static_cast<int>(workers_.size())}; }
  const std::map<std::string, const WorkerInfo*>& workers() const { return workers_; }  // By id.

 private:
  // All models that are in it as if one worker held them: whose model fits it fits each.
  WorkerInfo merged_;
  std::map<std::string, const WorkerInfo*> workers_;
  std::map<GridName, std::vector<const WorkerInfo*>> members_;
  Grids grids_;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_GROUP_H_
