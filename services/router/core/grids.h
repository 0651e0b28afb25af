// Which places of which grids are held, and since when. A value that Membership builds to see what
// is whole.
#ifndef SERVICES_ROUTER_CORE_GRIDS_H_
#define SERVICES_ROUTER_CORE_GRIDS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "services/router/core/worker_info.h"

namespace baton::router {

class Grids {
 public:
  // A worker has this place, or will most likely be back in it. The first of a grid says how many
  // `places` it has: one of another shape doesn't count for it.
  void Hold(const GridName& grid, int place, int places, int64_t changed_us = 0);

  // Whether a chain and a decode service are whole.
  bool CanPair() const;
  // When a place of a whole chain, or of a whole decode service, changed last; nullopt: none is
  // whole.
  std::optional<int64_t> WholeChangedUs(Role role) const;

 private:
  struct Places {
    int size = 0;
    std::set<int> held;
    int64_t changed_us = 0;  // Last.
  };
  std::map<GridName, Places> grids_;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_GRIDS_H_
