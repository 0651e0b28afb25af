#include "services/router/core/grids.h"

#include <algorithm>

namespace baton::router {

void Grids::Hold(const GridName& grid, int place, int places, int64_t changed_us) {
  Places& of = grids_[grid];
  if (of.size == 0) of.size = places;
  if (of.size != places) return;
  of.held.insert(place);
  of.changed_us = std::max(of.changed_us, changed_us);
}

bool Grids::CanPair() const {
  return WholeChangedUs(Role::kPrefill).has_value() && WholeChangedUs(Role::kDecode).has_value();
}

std::optional<int64_t> Grids::WholeChangedUs(Role role) const {
  std::optional<int64_t> latest_us;
  for (const auto& [grid, places] : grids_) {
    const bool whole = static_cast<int>(places.held.size()) == places.size;
    if (grid.role != role || !whole) continue;
    latest_us = std::max(latest_us.value_or(places.changed_us), places.changed_us);
  }
  return latest_us;
}

}  // namespace baton::router
