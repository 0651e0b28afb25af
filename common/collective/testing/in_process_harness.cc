#include <memory>
#include <vector>

#include "common/base/check.h"
#include "common/collective/testing/group_harness.h"
#include "common/collective/testing/in_process_group.h"
#include "common/sim/event_queue.h"

namespace baton::testing {
namespace {

class InProcessHarness final : public GroupHarness {
 public:
  InProcessHarness(int size, int64_t timeout_ms) {
    std::vector<GroupDescription> ranks;
    ranks.reserve(static_cast<size_t>(size));
    for (int rank = 0; rank < size; ++rank) ranks.push_back(TestGroup(rank, size));
    InProcessGroup::Options options;
    options.core.communicator.operation_timeout_ms = timeout_ms;
    group_ =
        std::make_unique<InProcessGroup>(ranks, options,
                                         Schedule{[this] { return events_.now_us(); },
                                                  [this](int64_t at_us, std::function<void()> run) {
                                                    events_.At(at_us, std::move(run));
                                                  }});
    for (int rank = 0; rank < size; ++rank) {
      runners_.push_back(std::make_unique<RankRunner>(&group_->rank(rank)));
      while (!group_->formed(rank)) BATON_CHECK(events_.Step());
    }
  }

  void Submit(int rank, const Command& command) override { runners_[rank]->Submit(command); }

  Outcome Take(int rank) override {
    for (;;) {
      if (std::optional<Outcome> outcome = runners_[rank]->TryTake()) return *outcome;
      BATON_CHECK(events_.Step()) << "rank " << rank << " waits for nothing";
    }
  }

  void Abort(int rank, const absl::Status& why) override { group_->rank(rank).Abort(why); }
  void Leave(int rank) override { group_->Leave(rank); }
  int Faults(int rank) override { return runners_[rank]->faults(); }
  bool mortal() const override { return true; }
  void Kill(int rank) override { group_->Kill(rank); }
  void Stop(int rank) override { group_->Stop(rank); }

 private:
  sim::EventQueue events_;
  std::vector<std::unique_ptr<RankRunner>> runners_;
  std::unique_ptr<InProcessGroup> group_;
};

}  // namespace

std::unique_ptr<GroupHarness> MakeGroup(int size, int64_t timeout_ms) {
  return std::make_unique<InProcessHarness>(size, timeout_ms);
}

}  // namespace baton::testing
