// A chain whose stages are tensor-parallel ranks, all in one process: a thread for each rank while
// a step runs.
#ifndef COMMON_ENGINE_TESTING_RANK_CHAIN_H_
#define COMMON_ENGINE_TESTING_RANK_CHAIN_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "common/collective/communicator.h"
#include "common/collective/testing/memory_group.h"
#include "common/engine/create_executor.h"
#include "common/engine/stage_model.h"

namespace baton::testing {

// Calls run(rank) on a thread for each, and waits.
inline void ForEachRank(size_t size, const std::function<void(size_t rank)>& run) {
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < size; ++rank) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
}

// Counts what is submitted to another.
class CountingCommunicator final : public Communicator {
 public:
  CountingCommunicator(std::shared_ptr<Communicator> inner, std::atomic<int>* all_reduces)
      : inner_(std::move(inner)), all_reduces_(all_reduces) {}
  void Submit(const Collective& collective, Done done) override {
    if (collective.kind == CollectiveKind::kAllReduce) ++*all_reduces_;
    inner_->Submit(collective, std::move(done));
  }
  void Abort(absl::Status why) override { inner_->Abort(std::move(why)); }
  const GroupDescription& group() const override { return inner_->group(); }

 private:
  const std::shared_ptr<Communicator> inner_;
  std::atomic<int>* const all_reduces_;
};

// One stage: its ranks' models, and the group that they have joined.
class RankedStage {
 public:
  RankedStage(ExecutorOptions options, int tp_size) : models_(static_cast<size_t>(tp_size)) {
    ForEachRank(models_.size(), [&](size_t rank) {
      ExecutorOptions mine = options;
      mine.tensor_rank = {static_cast<int>(rank), tp_size};
      auto model = LoadStageModel(mine);
      EXPECT_TRUE(model.ok()) << model.status();
      if (model.ok()) models_[rank] = *std::move(model);
    });
    Join(1);
  }
  ~RankedStage() { LeaveAll(); }

  // Forms the group of an epoch and joins it.
  void Join(uint64_t epoch, int64_t timeout_ms = 30'000) {
    if (models_.size() == 1) return;
    LeaveAll();
    group_ = FormMemoryGroup(static_cast<int>(models_.size()), epoch, timeout_ms);
    ForEachRank(models_.size(), [&](size_t rank) {
      auto counting = std::make_shared<CountingCommunicator>(group_[rank], &all_reduces_);
      const absl::Status joined = models_[rank]->JoinGroup(std::move(counting));
      EXPECT_TRUE(joined.ok()) << joined;
    });
    all_reduces_ = 0;
  }

  size_t size() const { return models_.size(); }
  StageModel& rank(size_t rank) { return *models_[rank]; }
  Communicator& group(size_t rank) { return *group_[rank]; }
  // Over all ranks since the group was joined, without measurements.
  int all_reduces() const { return all_reduces_; }

  // Runs the batch on all ranks. `in` and `out` are whole activations: each rank takes and gives
  // its slice, or all of them, which then must be equal. Returns the ranks' statuses.
  std::vector<absl::Status> Forward(const Batch& batch, std::span<std::byte> in,
                                    std::vector<std::byte>* out, std::span<float> logits) {
    const int64_t columns = models_[0]->activation_columns();
    const bool sliced = columns < models_[0]->config().hidden_size;
    const int64_t tokens = batch.TokenCount();
    const ElementType type = models_[0]->activation_type();
    std::vector<absl::Status> statuses(models_.size());
    std::vector<std::vector<std::byte>> outs(models_.size());
    ForEachRank(models_.size(), [&](size_t rank) {
      StageModel& model = *models_[rank];
      const size_t part = sliced ? in.size() / models_.size() : in.size();
      const std::span<std::byte> mine = in.subspan(sliced ? rank * part : 0, part);
      std::vector<std::byte> mine_in(mine.begin(), mine.end());
      TensorView view_in;
      TensorView view_out;
      if (!model.first_stage()) view_in = {HostSpan(mine_in), type, tokens, columns};
      if (!model.last_stage()) {
        view_out = {{}, type, tokens, columns};
        outs[rank].resize(view_out.bytes());
        view_out.memory = HostSpan(outs[rank]);
      }
      statuses[rank] = model.Forward(batch, view_in, view_out,
                                     model.tells_logits() ? logits : std::span<float>());
    });
    for (const auto& bytes : outs) {
      if (!sliced) {
        EXPECT_EQ(bytes, outs[0]) << "ranks disagree";
      }
      if (out != nullptr && (sliced || out->empty())) {
        out->insert(out->end(), bytes.begin(), bytes.end());
      }
    }
    return statuses;
  }

 private:
  void LeaveAll() {
    ForEachRank(group_.size(), [&](size_t rank) {
      if (models_[rank] != nullptr) group_[rank]->Abort(absl::CancelledError("the test is over"));
    });
  }

  std::vector<std::unique_ptr<StageModel>> models_;
  std::vector<std::shared_ptr<Communicator>> group_;
  std::atomic<int> all_reduces_ = 0;
};

// Stages that begin at `cuts`, each of `tp_size` ranks, and one sequence whose pages are in order.
class RankChain {
 public:
  RankChain(ExecutorOptions options, const std::vector<int>& cuts, int tp_size) {
    for (size_t i = 0; i < cuts.size(); ++i) {
      options.layer_begin = cuts[i];
      options.layer_end = i + 1 < cuts.size() ? cuts[i + 1] : -1;
      stages_.push_back(std::make_unique<RankedStage>(options, tp_size));
    }
    pages_.resize(static_cast<size_t>(options.page_count));
    std::iota(pages_.begin(), pages_.end(), 0);
  }

  size_t stages() const { return stages_.size(); }
  RankedStage& stage(size_t i) { return *stages_[i]; }
  std::span<const int32_t> pages() const { return pages_; }
  // The sequence's pages from now on are the others, the last first.
  void ReversePages() { std::reverse(pages_.begin(), pages_.end()); }

  // The logits after `tokens`, whose KV goes behind the `prefix` tokens already there.
  std::vector<float> Logits(std::span<const int32_t> tokens, int prefix) {
    SequenceSlice slice{{tokens, static_cast<int>(tokens.size()), prefix, pages_}};
    std::vector<float> logits(static_cast<size_t>(stages_[0]->rank(0).config().vocab_size));
    std::vector<std::byte> activations;
    for (const auto& stage : stages_) {
      slice.wants_logits = stage->rank(0).last_stage();
      std::vector<std::byte> out;
      for (const absl::Status& status : stage->Forward({{slice}}, activations, &out, logits)) {
        EXPECT_TRUE(status.ok()) << status;
      }
      activations = std::move(out);
    }
    return logits;
  }

 private:
  std::vector<std::unique_ptr<RankedStage>> stages_;
  std::vector<int32_t> pages_;
};

}  // namespace baton::testing

#endif  // COMMON_ENGINE_TESTING_RANK_CHAIN_H_
