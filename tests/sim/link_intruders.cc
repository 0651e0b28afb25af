#include "tests/sim/link_intruders.h"

#include <utility>

#include "absl/status/status.h"
#include "common/types/instance.h"

namespace baton::sim {
namespace {

constexpr uint64_t kNoCall = uint64_t{1} << 60;  // No call in the world has this number.
constexpr double kHasImpostor = 0.2;

// Makes it another group's member, or none's. A decode service has no stages.
void Differ(uint64_t how, worker::PeerWorker& member) {
  const bool prefills = member.role == Role::kPrefill;
  std::string& group = prefills ? member.chain_id : member.decode_id;
  if (how == 0) {
    member.decode_id = member.chain_id = std::string(group);
    member.role = prefills ? Role::kDecode : Role::kPrefill;
  } else if (how == 1) {
    group += "-other";
  } else if (how == 2 && prefills) {
    ++member.pp_size;
  } else if (how == 3 && prefills) {
    ++member.pp_rank;
  } else if (how == 4) {
    member.tensor_rank.rank = member.tensor_rank.size;
  } else if (how == 5) {
    ++member.layers.begin;
  } else {
    member.tensor_rank.size *= 2;
  }
}

}  // namespace

links::LinkEvent NonsenseOn(World& world, uint64_t link, const links::Hello& hello) {
  switch (world.random().Below(3)) {
    case 0: {
      links::Hello again = hello;
      ++again.epoch;
      return links::HelloArrived{link, again};
    }
    case 1:
      return links::WorkHeard{link, hello.epoch + 1, absl::OkStatus()};
    default:
      return links::WorkHeard{link, hello.epoch, absl::InvalidArgumentError("nonsense")};
  }
}

links::LinkEvent AnotherLeader(World& world, const links::Hello& hello) {
  links::Hello other = hello;
  other.epoch += world.random().Below(2);
  other.members.front().instance.id = kImpostor;
  return links::HelloArrived{kNoCall, other};
}

std::vector<worker::PeerWorker> WithImpostors(World& world, const links::ChainPlace& place,
                                              std::vector<worker::PeerWorker> view) {
  std::vector<worker::PeerWorker> impostors;
  for (const worker::PeerWorker& worker : view) {
    const bool member = worker.role == place.role && worker.group_id() == place.chain_id;
    if (!member || !world.random().Chance(kHasImpostor)) continue;
    worker::PeerWorker impostor = worker;
    impostor.instance.id = kImpostor;
    Differ(world.random().Below(7), impostor);
    impostors.push_back(std::move(impostor));
  }
  view.insert(view.begin(), impostors.begin(), impostors.end());
  return view;
}

}  // namespace baton::sim
