// A whole chain in one process: real services, links and data planes around fake executors, one
// fake decode service, and members that the test lists.
#ifndef SERVICES_PREFILL_TESTING_TEST_CHAIN_H_
#define SERVICES_PREFILL_TESTING_TEST_CHAIN_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/sync.h"
#include "services/prefill/prefill_service.h"
#include "services/prefill/testing/fake_decode.h"
#include "services/prefill/testing/fake_model.h"
#include "services/prefill/testing/memory_groups.h"

namespace baton::prefill {

class FakePeers final : public worker::Peers {
 public:
  std::optional<PeerId> Find(const InstanceRef& instance) const override;
  std::vector<PeerId> Decodes() const override;
  void Connect(DataPlane& from, const InstanceRef& to, const std::string& address, bool decode);
  void Disconnect(DataPlane& from, const InstanceRef& to);

  bool Want(const std::vector<InstanceRef>& peers) const override;
  std::atomic<bool> opening{false};  // Endpoints that don't stand are being opened.

 private:
  mutable Mutex mutex_;
  std::map<InstanceRef, PeerId> peers_ ABSL_GUARDED_BY(mutex_);
  std::vector<PeerId> decodes_ ABSL_GUARDED_BY(mutex_);
};

class TestChain {
 public:
  struct Settings {
    int stages = 1;
    int ranks = 1;  // In each stage. If > 1, "rank" below is a chain member (hello.h).
    int decode_ranks = 1;
    int chunk_tokens = 32;
    ChunkRule chunk_rule = ChunkRule::kFixed;
    int page_count = 64;
    int credits = 2;
    int plans_in_flight = 2;
    bool decodes = false;
    bool caches = false;
    int reserved_decode_tokens = 1 << 20;
    // By rank: the chunk costs that it reports.
    std::map<int, KnownCost> measured = {};
    std::optional<SweepLimits> rank_sweep = {};  // For stages of several ranks.
    // By rank: runs before every Forward of that stage, on its thread; may block.
    std::map<int, std::function<void()>> before_forward = {};
    Constraints* constraints = nullptr;  // The last stage's. Not owned.
    // What is put around a stage's model; none: MakeTestExecutor.
    std::function<std::unique_ptr<Executor>(int rank, std::unique_ptr<StageModel>)> make_executor =
        {};
  };
  explicit TestChain(const Settings& settings);
  ~TestChain();

  // Takes a stage's endpoint to decode from it, or gives it back; `opening`: it is to come.
  void LoseDecode(int rank, bool opening);
  void FindDecode(int rank);
  // Takes a stage's endpoint to another one from it.
  void Disconnect(int rank, int other);

  // Ends a stage as a crash would, and brings it back as a new incarnation. ShareView tells the
  // others.
  void KillStage(int rank);
  void StartStage(int rank);
  void ShareView();

  // Bounded; false if it did not come true.
  bool WaitFor(const std::function<bool()>& condition) const;
  bool WaitReady() const;
  bool WaitIdle() const;  // Every page of stage 0 is free again.

  // Starts a prompt and waits for the answer.
  absl::Status Run(uint64_t attempt_id, const std::vector<int32_t>& prompt, const Ticket& ticket,
                   v1::PrefillReport* report = nullptr, int64_t timeout_ms = 60'000);
  absl::Status Send(const v1::StartRequest& request, v1::PrefillReport* report = nullptr,
                    int rank = 0);
  absl::Status Send(const v1::StartRequest& request, v1::StartResponse& response, int rank = 0);
  absl::Status Abort(uint64_t attempt_id);

  static v1::StartRequest Request(uint64_t attempt_id, const std::vector<int32_t>& prompt,
                                  const Ticket& ticket);
  static std::vector<int32_t> Prompt(int tokens, int seed);

  FakeDecode& decode() { return *decodes_[0]; }
  // Grants at all ranks of decode, and what Check says of all of them.
  Ticket GrantRanks(int prompt_tokens);
  std::string CheckRanks(const Ticket& ticket, const std::vector<int32_t>& prompt);
  std::unique_ptr<v1::Prefill::Stub> Stub(int rank) const;
  const InstanceRef& instance(int rank) const { return stages_[static_cast<size_t>(rank)].self; }
  std::string Scrape(int rank) { return stages_[static_cast<size_t>(rank)].metrics->Scrape(); }
  PrefillService& service(int rank) { return *stages_[static_cast<size_t>(rank)].service; }

 private:
  struct Stage {
    InstanceRef self;
    std::unique_ptr<Executor> executor;
    std::unique_ptr<Metrics> metrics;
    std::unique_ptr<FakePeers> peers;
    std::unique_ptr<DataPlane> data_plane;
    std::unique_ptr<PrefillService> service;  // Null: dead.
  };
  LayerRange LayersOf(int rank) const;
  TensorRank TensorRankOf(int rank) const { return {rank % settings_.ranks, settings_.ranks}; }
  int members() const { return settings_.stages * settings_.ranks; }

  const Settings settings_;
  std::vector<std::unique_ptr<FakeDecode>> decodes_;  // By rank.
  MemoryGroups groups_{3000};
  std::vector<Stage> stages_;
  uint64_t next_incarnation_ = 100;
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_TESTING_TEST_CHAIN_H_
