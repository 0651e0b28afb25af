#include "common/collective/testing/threaded_harness.h"

#include <thread>
#include <vector>

#include "common/base/check.h"
#include "common/collective/threaded_communicator.h"

namespace baton::testing {
namespace {

constexpr int64_t kFormTimeoutMs = 60'000;

class ThreadedHarness final : public GroupHarness {
 public:
  ThreadedHarness(int size, int64_t timeout_ms, const ConnectRank& connect)
      : communicators_(static_cast<size_t>(size)) {
    collective::CoreOptions options;
    options.communicator.operation_timeout_ms = timeout_ms;
    ForEachRank([&](int rank) {
      auto transport = connect(rank);
      BATON_CHECK(transport.ok()) << transport.status();
      auto communicator = ThreadedCommunicator::Create(TestGroup(rank, size), options,
                                                       *std::move(transport), kFormTimeoutMs);
      BATON_CHECK(communicator.ok()) << communicator.status();
      communicators_[rank] = *std::move(communicator);
    });
    for (const auto& communicator : communicators_) {
      runners_.push_back(std::make_unique<RankRunner>(communicator.get()));
    }
  }
  ~ThreadedHarness() override {
    ForEachRank([this](int rank) { communicators_[rank].reset(); });
  }

  void Submit(int rank, const Command& command) override { runners_[rank]->Submit(command); }
  Outcome Take(int rank) override { return runners_[rank]->Take(); }
  void Abort(int rank, const absl::Status& why) override { communicators_[rank]->Abort(why); }
  void Leave(int rank) override { communicators_[rank].reset(); }
  int Faults(int rank) override { return runners_[rank]->faults(); }
  bool mortal() const override { return false; }
  void Kill(int rank) override { BATON_CHECK(false) << "a thread has no death of its own"; }
  void Stop(int rank) override { BATON_CHECK(false) << "a thread can't be stopped"; }

 private:
  // At the same time, as processes do: forming and leaving wait for the others.
  void ForEachRank(const std::function<void(int)>& run) {
    std::vector<std::thread> threads;
    threads.reserve(communicators_.size());
    for (size_t rank = 0; rank < communicators_.size(); ++rank) {
      threads.emplace_back(run, static_cast<int>(rank));
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<std::unique_ptr<RankRunner>> runners_;
  std::vector<std::unique_ptr<ThreadedCommunicator>> communicators_;
};

}  // namespace

std::unique_ptr<GroupHarness> MakeThreadedGroup(int size, int64_t timeout_ms,
                                                const ConnectRank& connect) {
  return std::make_unique<ThreadedHarness>(size, timeout_ms, connect);
}

}  // namespace baton::testing
