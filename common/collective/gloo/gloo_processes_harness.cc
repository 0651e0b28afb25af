// Ranks over Gloo as processes of their own, which can be killed and stopped.
#include <signal.h>

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/collective/gloo/rank_process.h"
#include "common/collective/testing/group_harness.h"

namespace baton::testing {
namespace {

class ProcessHarness final : public GroupHarness {
 public:
  ProcessHarness(int size, int64_t timeout_ms) {
    for (int rank = 0; rank < size; ++rank) {
      ranks_.push_back(std::make_unique<RankProcess>(
          RankProcess::Options{.rank = rank, .size = size, .operation_timeout_ms = timeout_ms},
          &wiring_));
    }
    for (const auto& rank : ranks_) {
      const absl::Status formed = rank->AwaitFormed();
      BATON_CHECK(formed.ok()) << formed;
    }
  }

  void Submit(int rank, const Command& command) override {
    ranks_[rank]->Say("go " + command.ToText());
  }
  Outcome Take(int rank) override { return OutcomeFromText(ranks_[rank]->Next()); }
  void Abort(int rank, const absl::Status& why) override {
    ranks_[rank]->Say(absl::StrCat("abort ", std::string(why.message())));
  }
  void Leave(int rank) override { ranks_[rank].reset(); }
  int Faults(int rank) override {
    ranks_[rank]->Say("faults");
    return std::stoi(ranks_[rank]->Next());
  }
  bool mortal() const override { return true; }
  void Kill(int rank) override { ranks_[rank]->Signal(SIGKILL); }
  void Stop(int rank) override { ranks_[rank]->Signal(SIGSTOP); }

 private:
  LocalWiring wiring_{"stage 1", /*timeout_ms=*/60'000};
  std::vector<std::unique_ptr<RankProcess>> ranks_;
};

}  // namespace

std::unique_ptr<GroupHarness> MakeGroup(int size, int64_t timeout_ms) {
  return std::make_unique<ProcessHarness>(size, timeout_ms);
}

}  // namespace baton::testing
