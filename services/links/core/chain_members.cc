#include "services/links/core/chain_members.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace baton::links {

std::vector<worker::PeerWorker> FindMembers(const ChainPlace& place,
                                            const std::vector<worker::PeerWorker>& listed) {
  std::vector<worker::PeerWorker> found;
  LayerRange layers = place.self.layers;  // The previous member's.
  for (int member = 1; member < place.members(); ++member) {
    const int stage = place.StageOf(member);
    const TensorRank rank{place.RankOf(member), place.ranks()};
    const auto worker = std::find_if(listed.begin(), listed.end(), [&](const auto& candidate) {
      return candidate.role == place.role && candidate.group_id() == place.chain_id &&
             candidate.pp_size == place.stages && candidate.pp_rank == stage &&
             candidate.tensor_rank == rank &&
             (rank.rank == 0 ? candidate.layers.begin == layers.end : candidate.layers == layers);
    });
    if (worker == listed.end()) return {};
    layers = worker->layers;
    found.push_back(*worker);
  }
  if (layers.end != place.layers) return {};
  return found;
}

absl::Status Blame(const absl::Status& cause, const worker::PeerWorker& member) {
  const std::string& name = member.instance.id;
  const std::string blamed = InstanceOf(cause).value_or(name);
  const std::string place =
      NameOfPlace(member.role, member.pp_rank, member.pp_size, member.tensor_rank);
  // A member that reports the loss of another is not lost itself.
  const absl::Status status = absl::UnavailableError(
      absl::StrCat(place, " (", name, ")", blamed == name ? " is lost: " : ": ", cause.message()));
  return WithLeg(status, RoleName(member.role), blamed);
}

}  // namespace baton::links
