// Workers that all fit one another, and what they could serve together. A value that Membership
// builds to compare; it points at workers that its maker keeps.
#ifndef SERVICES_ROUTER_CORE_GROUP_H_
#define SERVICES_ROUTER_CORE_GROUP_H_

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "services/router/core/membership.h"

namespace baton::router {

class Group {
 public:
  // Whether `worker` fits all that are in it, and nobody of its name is.
  bool Fits(const WorkerInfo& worker) const;
  // `worker` fits and outlives the group.
  void Add(const WorkerInfo& worker);
  // Somebody for this place is away and will most likely be back.
  void ExpectStage(const std::string& chain_id, int place, int places);
  void ExpectDecode() { decode_ = true; }

  // A whole chain and a decode service are here, or expected.
  bool CanPair() const;
  // What a router prefers, in order: who can serve, then who are more.
  std::pair<bool, int> Rank() const { return {CanPair(), static_cast<int>(workers_.size())}; }
  const std::map<std::string, const WorkerInfo*>& workers() const { return workers_; }  // By id.

 private:
  struct Places {
    int size = 0;
    std::set<int> held;
  };
  // All models that are in it as if one worker held them: who fits it fits each.
  WorkerInfo merged_;
  std::map<std::string, const WorkerInfo*> workers_;
  std::map<std::string, std::vector<const WorkerInfo*>> stages_;  // By chain.
  std::map<std::string, Places> chains_;
  bool decode_ = false;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_GROUP_H_
