// Runs at stage 0's rank 0, so that the ranks of each stage find one another: one rendezvous for
// each stage and epoch (common/collective/rendezvous.h), fed with members' messages from their
// links. Plain, for the wiring.
//
// Rejected: each stage's rendezvous at its own rank 0. All links end here, so it would be a hop
// more for every message, and a second place that tracks lost members.
#ifndef SERVICES_LINKS_CORE_GROUP_RENDEZVOUS_H_
#define SERVICES_LINKS_CORE_GROUP_RENDEZVOUS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/collective/communicator.h"
#include "common/collective/rendezvous.h"
#include "services/links/core/hello.h"

namespace baton::links {

// A place's own group in an epoch, as communicators know it.
GroupDescription GroupOf(const ChainPlace& place, const Hello& hello);

class GroupRendezvous {
 public:
  explicit GroupRendezvous(const ChainPlace& place) : place_(place) {}

  // Begins an epoch with several ranks a stage and forgets the one before. Each stage's ranks have
  // `timeout_ms` from the first one's join on, checked by Tick.
  void Begin(const Hello& hello, int64_t timeout_ms);

  void OnJoin(int member, int64_t now_us);
  void OnEntry(int member, const Rendezvous::Entry& entry);
  void OnConnected(int member);
  void Tick(int64_t now_us);

  // Messages to members, in order.
  struct ToMember {
    int member = 0;
    Rendezvous::Message message;
  };
  std::vector<ToMember> TakeMessages();

 private:
  Rendezvous* Of(int member);

  const ChainPlace place_;
  Hello hello_;
  std::vector<Rendezvous> groups_;  // By stage; none between epochs.
};

}  // namespace baton::links

#endif  // SERVICES_LINKS_CORE_GROUP_RENDEZVOUS_H_
