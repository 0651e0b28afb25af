// This rank's way into its group, a stage's or a decode service's: connects to the other ranks on a
// thread of its own, meanwhile exchanges rendezvous messages with them
// (common/collective/rendezvous.h), and hands the group to the executor. One attempt at a time;
// what is left of an older one is let go on that thread, since a communicator's end may wait for
// the others.
#ifndef SERVICES_LINKS_GROUP_JOINER_H_
#define SERVICES_LINKS_GROUP_JOINER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/event_loop.h"
#include "common/collective/bootstrap_store.h"
#include "common/collective/communicator.h"
#include "common/collective/rendezvous.h"
#include "common/engine/connect_group.h"
#include "common/engine/executor.h"
#include "common/types/instance.h"

namespace baton::links {

// Loop thread, but for the destructor and Stop.
class GroupJoiner {
 public:
  // What the group's members are to be told of an attempt, and how it ends: exactly once, unless
  // Leave comes first.
  struct Callbacks {
    std::function<void(const Rendezvous::Entry&)> say;
    std::function<void()> connected;
    std::function<void(const absl::Status&)> formed;
  };
  // What all ranks do with a group that the executors have joined, before it is said to have
  // formed: on the joiner's thread, while no other thread submits anything.
  using OnceJoined = std::function<absl::Status(Communicator&)>;
  // `executor` is not owned; it outlives Stop. The ranks are workers of that role.
  GroupJoiner(Role role, Executor* executor, std::shared_ptr<EventLoop> loop, ConnectGroup connect,
              OnceJoined once_joined = nullptr);
  ~GroupJoiner() { Stop(); }

  void Join(const GroupDescription& group, Callbacks callbacks);
  void OnMessage(const Rendezvous::Message& message);
  // Ends the attempt, or the group that came of it: whatever the executor computes with it fails.
  void Leave(const absl::Status& why);

  // Adds the leg and the rank's instance if `status` blames a rank of the group joined last.
  absl::Status Blame(const absl::Status& status) const;

  // After the last call; waits for the thread. Not on the loop.
  void Stop();

 private:
  struct Attempt;
  void OnConnected(const std::shared_ptr<Attempt>& attempt,
                   absl::StatusOr<std::shared_ptr<Communicator>> communicator);
  void OnJoined(const std::shared_ptr<Attempt>& attempt, const absl::Status& status);
  void End(const std::shared_ptr<Attempt>& attempt, const absl::Status& status);

  const Role role_;
  Executor* const executor_;
  const std::shared_ptr<EventLoop> loop_;
  const ConnectGroup connect_;
  const OnceJoined once_joined_;  // May be null.
  EventLoop connecting_{"baton-group"};
  std::shared_ptr<Attempt> attempt_;  // Null: none, and no group.
  std::vector<std::string> members_;  // Instances of the last group, by rank.
};

}  // namespace baton::links

#endif  // SERVICES_LINKS_GROUP_JOINER_H_
