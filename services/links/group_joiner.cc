#include "services/links/group_joiner.h"

#include <utility>

#include "common/base/log.h"
#include "common/base/status.h"

namespace baton::links {
// Used on the loop only, except the store, which any thread may call.
struct GroupJoiner::Attempt {
  GroupDescription group;
  Callbacks callbacks;
  std::shared_ptr<BootstrapStore> store;
  std::shared_ptr<Communicator> communicator;  // Once connected.
  bool over = false;                           // `formed` has been called.
};

GroupJoiner::GroupJoiner(Role role, Executor* executor, std::shared_ptr<EventLoop> loop,
                         ConnectGroup connect, OnceJoined once_joined)
    : role_(role),
      executor_(executor),
      loop_(std::move(loop)),
      connect_(std::move(connect)),
      once_joined_(std::move(once_joined)) {
  connecting_.Start();
}

void GroupJoiner::Join(const GroupDescription& group, Callbacks callbacks) {
  Leave(absl::CancelledError("the next epoch's group replaces it"));
  members_ = group.members;
  const auto attempt = std::make_shared<Attempt>();
  attempt->group = group;
  attempt->callbacks = std::move(callbacks);
  attempt->store =
      std::make_shared<BootstrapStore>([this, weak = std::weak_ptr<Attempt>(attempt)](
                                           const std::string& key, const std::string& value) {
        // A lost one is a group that does not form in time.
        (void)loop_->PostCompletion([this, weak, key, value] {
          const auto said = weak.lock();
          if (said != nullptr && said == attempt_) said->callbacks.say({key, value});
        });
      });
  attempt_ = attempt;
  const bool posted = connecting_.PostCompletion([this, attempt, group, store = attempt->store] {
    auto communicator = connect_(group, store);
    (void)loop_->PostCompletion([this, attempt, communicator = std::move(communicator)]() mutable {
      OnConnected(attempt, std::move(communicator));
    });
  });
  if (!posted) End(attempt, absl::CancelledError("the worker has ended"));
}

void GroupJoiner::OnConnected(const std::shared_ptr<Attempt>& attempt,
                              absl::StatusOr<std::shared_ptr<Communicator>> communicator) {
  const absl::Status status = communicator.status();
  if (status.ok()) attempt->communicator = *std::move(communicator);
  if (attempt != attempt_) {
    // The last to hold it lets it go, and not here.
    (void)connecting_.PostCompletion([attempt] { attempt->communicator.reset(); });
    return;
  }
  if (attempt->communicator == nullptr) return End(attempt, status);
  attempt->callbacks.connected();
}

void GroupJoiner::OnMessage(const Rendezvous::Message& message) {
  const std::shared_ptr<Attempt> attempt = attempt_;
  if (attempt == nullptr) return;
  if (message.entry) attempt->store->Put(message.entry->key, message.entry->value);
  if (!message.verdict) return;
  if (!message.verdict->ok()) return End(attempt, *message.verdict);
  if (attempt->communicator == nullptr) {
    return End(attempt, absl::FailedPreconditionError("its group has formed without this rank"));
  }
  executor_->JoinGroup(attempt->communicator, [this, attempt](const absl::Status& status) {
    (void)loop_->PostCompletion([this, attempt, status] { OnJoined(attempt, status); });
  });
}

void GroupJoiner::OnJoined(const std::shared_ptr<Attempt>& attempt, const absl::Status& status) {
  if (!status.ok() || once_joined_ == nullptr || attempt != attempt_) return End(attempt, status);
  const bool posted =
      connecting_.PostCompletion([this, attempt, communicator = attempt->communicator] {
        const absl::Status ended = once_joined_(*communicator);
        (void)loop_->PostCompletion([this, attempt, ended] { End(attempt, ended); });
      });
  if (!posted) End(attempt, absl::CancelledError("the worker has ended"));
}

// Ends the current attempt: reports its status, and leaves the group if that is an error.
void GroupJoiner::End(const std::shared_ptr<Attempt>& attempt, const absl::Status& status) {
  if (attempt != attempt_ || std::exchange(attempt->over, true)) return;
  if (status.ok()) {
    LOG(kInfo) << attempt->group.Describe(attempt->group.rank) << " is in a group of "
               << attempt->group.size();
  } else {
    Leave(status);
  }
  attempt->callbacks.formed(Blame(status));
}

void GroupJoiner::Leave(const absl::Status& why) {
  if (attempt_ == nullptr) return;
  const std::shared_ptr<Attempt> attempt = std::exchange(attempt_, nullptr);
  attempt->store->End(why);
  if (attempt->communicator == nullptr) return;
  attempt->communicator->Abort(why);
  (void)connecting_.PostCompletion([attempt] { attempt->communicator.reset(); });
}

absl::Status GroupJoiner::Blame(const absl::Status& status) const {
  const std::optional<int> rank = RankOf(status);
  if (!rank || *rank < 0 || *rank >= static_cast<int>(members_.size())) return status;
  return WithLeg(status, RoleName(role_), members_[static_cast<size_t>(*rank)]);
}

void GroupJoiner::Stop() {
  if (attempt_ != nullptr) attempt_->store->End(absl::CancelledError("the worker has ended"));
  connecting_.Stop();
}

}  // namespace baton::links
