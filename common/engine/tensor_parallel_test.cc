// Ranks that share a model's layers, beside one another bit for bit, and what goes wrong between
// them.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/failpoint.h"
#include "common/engine/executors/threaded_executor.h"
#include "common/engine/testing/model_chain.h"
#include "common/engine/testing/rank_chain.h"

namespace baton {
namespace {

using testing::RankChain;
using testing::RankedStage;

int32_t Argmax(const std::vector<float>& logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// What must not change a bit once the number of ranks is given.
class RanksInvarianceTest : public ::testing::TestWithParam<std::tuple<int, ElementType>> {
 protected:
  static constexpr int kLayers = 6;
  int tp_size() const { return std::get<0>(GetParam()); }
  ExecutorOptions Options() const {
    ExecutorOptions options = OptionsFor(SmallModel());
    options.dtype = std::get<1>(GetParam());
    return options;
  }
  // The logits of the prompt, fed `chunk` at a time, and of one token after it.
  static std::vector<std::vector<float>> Run(RankChain& chain, int chunk = 1000) {
    const std::vector<int32_t> prompt = RandomPrompt(450);  // Several blocks of rows.
    std::vector<std::vector<float>> logits(1);
    for (size_t begin = 0; begin < prompt.size(); begin += static_cast<size_t>(chunk)) {
      const size_t count = std::min(static_cast<size_t>(chunk), prompt.size() - begin);
      logits[0] = chain.Logits(std::span(prompt).subspan(begin, count), static_cast<int>(begin));
    }
    const int32_t token = 5;
    logits.push_back(chain.Logits(std::span(&token, 1), static_cast<int>(prompt.size())));
    return logits;
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, RanksInvarianceTest,
                         ::testing::Combine(::testing::Values(2, 4),
                                            ::testing::ValuesIn(kElementTypes)),
                         [](const auto& info) {
                           return "tp" + std::to_string(std::get<0>(info.param)) + "_" +
                                  ElementTypeName(std::get<1>(info.param));
                         });

TEST_P(RanksInvarianceTest, RowParallelChunksChangeNoBit) {
  RankChain whole(Options(), {0}, tp_size());
  const auto expected = Run(whole);
  // The embeddings' sum, and two a layer, in each of two steps.
  EXPECT_EQ(whole.stage(0).all_reduces(), tp_size() * 2 * (1 + 2 * kLayers));
  for (const int chunks : {2, 4, 8}) {
    ExecutorOptions options = Options();
    options.row_parallel = {chunks, 400};
    RankChain chain(options, {0}, tp_size());
    EXPECT_EQ(Run(chain), expected) << chunks;
    EXPECT_EQ(chain.stage(0).all_reduces(), tp_size() * (2 + 2 * kLayers * chunks + 2 * kLayers))
        << "a prompt above the threshold is cut, a token is not";
  }
}

TEST_P(RanksInvarianceTest, AutoChunksChangeNoBit) {
  RankChain whole(Options(), {0}, tp_size());
  ExecutorOptions options = Options();
  options.row_parallel = {0, 1};
  RankChain chain(options, {0}, tp_size());
  EXPECT_EQ(Run(chain), Run(whole));
}

TEST_P(RanksInvarianceTest, PromptChunksStagesAndThreadsChangeNoBit) {
  RankChain whole(Options(), {0}, tp_size());
  const auto expected = Run(whole);
  for (const int chunk : {31, 100}) {
    RankChain chain(Options(), {0}, tp_size());
    EXPECT_EQ(Run(chain, chunk), expected) << chunk;
  }
  RankChain stages(Options(), {0, 1, 4}, tp_size());
  EXPECT_EQ(Run(stages), expected);
  ExecutorOptions threaded = Options();
  threaded.threads = 2;
  RankChain threads(threaded, {0}, tp_size());
  EXPECT_EQ(Run(threads), expected);
}

TEST_P(RanksInvarianceTest, SlicesOfActivationsChangeNoBit) {
  RankChain whole(Options(), {0, 1, 4}, tp_size());
  ExecutorOptions options = Options();
  options.slice_activations = true;
  RankChain sliced(options, {0, 1, 4}, tp_size());
  for (size_t stage = 0; stage < 3; ++stage) {
    EXPECT_EQ(sliced.stage(stage).rank(0).activation_columns() * tp_size(),
              whole.stage(stage).rank(0).activation_columns());
  }
  EXPECT_EQ(Run(sliced), Run(whole));
}

TEST_P(RanksInvarianceTest, CompanyChangesNoBit) {
  RankChain alone(Options(), {0}, tp_size());
  const std::vector<int32_t> prompts[] = {RandomPrompt(150, 1), RandomPrompt(40, 2)};
  const std::vector<std::vector<float>> expected = {alone.Logits(prompts[0], 0),
                                                    alone.Logits(prompts[1], 0)};
  RankedStage together(Options(), tp_size());
  Batch batch;
  for (size_t i = 0; i < 2; ++i) {
    const auto count = static_cast<int>(prompts[i].size());
    batch.slices.push_back({{prompts[i], count, 0, alone.pages().subspan(i * 20)}, true});
  }
  std::vector<float> logits(2 * expected[0].size());
  for (const absl::Status& status : together.Forward(batch, {}, nullptr, logits)) {
    ASSERT_TRUE(status.ok()) << status;
  }
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(std::memcmp(&logits[i * expected[0].size()], expected[i].data(),
                          expected[0].size() * sizeof(float)),
              0)
        << i;
  }
}

TEST(TensorParallelTest, LogitsOfAllTokensComeOutOnRankZeroAlone) {
  const std::vector<int32_t> prompt = RandomPrompt(70);
  RankChain reference(OptionsFor(SmallModel()), {0}, 2);
  const std::vector<float> last = reference.Logits(prompt, 0);
  RankedStage stage(OptionsFor(SmallModel()), 2);
  std::atomic<int> calls = 0;
  std::vector<float> told;
  SequenceSlice slice{{prompt, 70, 0, reference.pages()}};
  slice.on_logits = [&](int first, std::span<const float> logits) {
    EXPECT_EQ(first, 32 * calls++);
    told.assign(logits.end() - static_cast<ptrdiff_t>(last.size()), logits.end());
  };
  for (const absl::Status& status : stage.Forward({{slice}}, {}, nullptr, {})) {
    ASSERT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(told, last);
}

// Keys and values of a KV head are the same bits wherever they are computed from the same inputs,
// which those of layer 0 are.
TEST(TensorParallelTest, RanksHoldTheirHeadsAndShareThoseThatAreTooFew) {
  const std::vector<int32_t> prompt = RandomPrompt(40);
  RankChain whole(OptionsFor(SmallModel()), {0}, 1);
  whole.Logits(prompt, 0);
  StageModel& one = whole.stage(0).rank(0);
  EXPECT_EQ(one.kv().heads(), (IndexRange{0, 2}));
  for (const int tp_size : {2, 4}) {
    RankChain chain(OptionsFor(SmallModel()), {0}, tp_size);
    chain.Logits(prompt, 0);
    for (int rank = 0; rank < tp_size; ++rank) {
      StageModel& model = chain.stage(0).rank(static_cast<size_t>(rank));
      const int head = rank * 2 / tp_size;
      ASSERT_EQ(model.kv().heads(), (IndexRange{head, head + 1}));
      EXPECT_EQ(model.kv().PageBytes() * 2, one.kv().PageBytes());
      const size_t bytes = one.kv().HeadBytes();
      for (const size_t value : {size_t{0}, size_t{1}}) {  // Keys, values.
        const std::byte* mine = PageOf(model, 1).data() + value * bytes;
        const std::byte* all =
            PageOf(one, 1).data() + (2 * value + static_cast<size_t>(head)) * bytes;
        EXPECT_EQ(std::memcmp(mine, all, bytes), 0) << "rank " << rank << " of " << tp_size;
      }
    }
    for (int rank = 0; tp_size == 4 && rank < 4; rank += 2) {
      const auto page = [&](int r) {
        return PageOf(chain.stage(0).rank(static_cast<size_t>(r)), 1);
      };
      EXPECT_TRUE(std::ranges::equal(page(rank), page(rank + 1))) << "in every layer";
    }
  }
}

// A row of latent attention is not cut: every rank has the same, and layer 0's is that of one rank.
TEST(TensorParallelTest, EveryRankHoldsTheWholeLatentRow) {
  RandomModelOptions latent;
  latent.architecture = "DeepseekV3ForCausalLM";
  const std::string path = ModelPath("latent-rows", latent);
  const std::vector<int32_t> prompt = RandomPrompt(40);
  RankChain whole(OptionsFor(path), {0}, 1);
  whole.Logits(prompt, 0);
  StageModel& one = whole.stage(0).rank(0);
  const KvGeometry& kv = one.kv();
  EXPECT_EQ(kv.planes, 1);
  EXPECT_EQ(kv.TokenBytes(), size_t{4} * (64 + 16) * static_cast<size_t>(kv.layers()));
  for (const int tp_size : {2, 4}) {
    RankChain chain(OptionsFor(path), {0}, tp_size);
    chain.Logits(prompt, 0);
    const auto first = PageOf(chain.stage(0).rank(0), 1);
    EXPECT_EQ(std::memcmp(first.data(), PageOf(one, 1).data(), kv.LayerBytes()), 0);
    for (int rank = 1; rank < tp_size; ++rank) {
      StageModel& model = chain.stage(0).rank(static_cast<size_t>(rank));
      EXPECT_EQ(model.kv().layout(), kv.layout());
      EXPECT_TRUE(std::ranges::equal(PageOf(model, 1), first)) << rank << " of " << tp_size;
    }
  }
}

// ---- What goes wrong ----

class BrokenGroupTest : public ::testing::Test {
 protected:
  static SequenceSlice Slice(std::span<const int32_t> tokens, std::span<const int32_t> pages) {
    return {{tokens, static_cast<int>(tokens.size()), 0, pages}, true};
  }
  RankedStage stage_{OptionsFor(SmallModel()), 2};
  const std::vector<int32_t> prompt_ = RandomPrompt(40);
  const std::vector<int32_t> pages_ = {0, 1, 2};
  std::vector<float> logits_ = std::vector<float>(300);
};

TEST_F(BrokenGroupTest, ARankThatEndsIsNamedByTheOthersStepAndTheNextGroupComputesAgain) {
  stage_.Forward({{Slice(prompt_, pages_)}}, {}, nullptr, logits_);
  const std::vector<float> expected = logits_;
  stage_.group(1).Abort(WithRank(absl::UnavailableError("rank 1 of stage 0 was killed"), 1));
  for (const absl::Status& status :
       stage_.Forward({{Slice(prompt_, pages_)}}, {}, nullptr, logits_)) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_EQ(RankOf(status), 1);
    EXPECT_NE(std::string(status.message()).find("rank 1 of stage 0"), std::string::npos) << status;
  }
  stage_.Join(2);
  for (const absl::Status& status :
       stage_.Forward({{Slice(prompt_, pages_)}}, {}, nullptr, logits_)) {
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(logits_, expected);
}

TEST_F(BrokenGroupTest, ARankThatNeverComesEndsTheOthersStepWithItsName) {
  stage_.Join(2, /*timeout_ms=*/200);
  const absl::Status status = stage_.rank(0).Forward({{Slice(prompt_, pages_)}}, {}, {}, logits_);
  EXPECT_EQ(RankOf(status), 1) << status;
  EXPECT_NE(std::string(status.message()).find("prefill-0-1"), std::string::npos) << status;
}

TEST_F(BrokenGroupTest, ABatchThatAllRefuseLeavesTheGroupAlone) {
  std::vector<int32_t> wrong = prompt_;
  wrong[3] = 300;
  for (const absl::Status& status :
       stage_.Forward({{Slice(wrong, pages_)}}, {}, nullptr, logits_)) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }
  for (const absl::Status& status :
       stage_.Forward({{Slice(prompt_, pages_)}}, {}, nullptr, logits_)) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(TensorParallelTest, SlicesThatAreNotEqualAreRefused) {
  RandomModelOptions model;
  model.hidden_size = 66;
  ExecutorOptions options = OptionsFor(ModelPath("hidden66", model));
  options.tensor_rank = {0, 4};
  EXPECT_TRUE(LoadStageModel(options).ok());
  options.slice_activations = true;
  const absl::Status status = LoadStageModel(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("is 4, which does not divide the model's 66"), std::string::npos)
      << status;
}

TEST(TensorParallelTest, GroupsOfOtherRanksAreRefused) {
  ExecutorOptions options = OptionsFor(SmallModel());
  const auto join = [&](TensorRank rank, std::shared_ptr<Communicator> group) {
    options.tensor_rank = rank;
    return (*LoadStageModel(options))->JoinGroup(std::move(group));
  };
  const auto two = testing::FormMemoryGroup(2);
  EXPECT_EQ(join({0, 2}, two[1]).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(join({0, 4}, two[0]).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(join({}, two[0]).code(), absl::StatusCode::kInvalidArgument);
  const std::vector<int32_t> prompt = RandomPrompt(4);
  const std::vector<int32_t> pages = {0};
  options.tensor_rank = {0, 2};
  std::vector<float> logits(300);
  EXPECT_EQ((*LoadStageModel(options))
                ->Forward({{SequenceSlice{{prompt, 4, 0, pages}, true}}}, {}, {}, logits)
                .code(),
            absl::StatusCode::kFailedPrecondition);
  for (const auto& rank : two) rank->Abort(absl::CancelledError("the test is over"));
}

// ---- Executors ----

// Two ranks behind the seam, and what their steps come to.
class RankedExecutorsTest : public ::testing::Test {
 protected:
  RankedExecutorsTest() {
    testing::ForEachRank(2, [this](size_t rank) {
      ExecutorOptions options = OptionsFor(SmallModel());
      options.tensor_rank = {static_cast<int>(rank), 2};
      executors_[rank] = std::make_unique<ThreadedExecutor>(
          *LoadStageModel(options), "rank" + std::to_string(rank) + ".compute");
    });
  }
  ~RankedExecutorsTest() override {
    for (const auto& rank : group_) rank->Abort(absl::CancelledError("the test is over"));
  }

  void Join(uint64_t epoch) {
    group_ = testing::FormMemoryGroup(2, epoch);
    std::promise<absl::Status> joined[2];
    for (const size_t rank : {0, 1}) {
      executors_[rank]->JoinGroup(group_[rank], [&joined, rank](const absl::Status& status) {
        joined[rank].set_value(status);
      });
    }
    for (auto& status : joined) EXPECT_TRUE(status.get_future().get().ok());
  }

  // A greedy draw after the prompt. Rank 1 is not told how to draw, since it doesn't.
  std::vector<StepResult> Draw() {
    const SamplingParams greedy;
    std::promise<StepResult> results[2];
    for (const size_t rank : {0, 1}) {
      Step step;
      SequenceStep sequence{{prompt_, static_cast<int>(prompt_.size()), 0, pages_}};
      sequence.draw.emplace();
      if (rank == 0) sequence.draw->params = &greedy;
      step.sequences.push_back(sequence);
      executors_[rank]->Submit(std::move(step), [&results, rank](StepResult result) {
        results[rank].set_value(std::move(result));
      });
    }
    std::vector<StepResult> ended;
    for (auto& result : results) ended.push_back(result.get_future().get());
    return ended;
  }

  const std::vector<int32_t> prompt_ = RandomPrompt(40);
  const std::vector<int32_t> pages_ = {0, 1, 2};
  std::unique_ptr<Executor> executors_[2];
  std::vector<std::shared_ptr<Communicator>> group_;
};

TEST_F(RankedExecutorsTest, RankZeroDrawsAndTheOtherTakesPart) {
  RankChain chain(OptionsFor(SmallModel()), {0}, 1);
  const int32_t expected = Argmax(chain.Logits(prompt_, 0));
  Join(1);
  const std::vector<StepResult> results = Draw();
  ASSERT_TRUE(results[0].status.ok() && results[1].status.ok())
      << results[0].status << results[1].status;
  ASSERT_EQ(results[0].drawn.size(), 1u);
  EXPECT_EQ(results[0].drawn[0]->token, expected);
  EXPECT_TRUE(results[1].drawn.empty());
}

TEST_F(RankedExecutorsTest, AStepThatFailsBeforeItComputesEndsTheOthersWithItsRank) {
  Join(1);
  ASSERT_TRUE(ArmFailpoints("rank1.compute=error@1").ok());
  std::vector<StepResult> results = Draw();
  ASSERT_TRUE(ArmFailpoints("").ok());
  EXPECT_EQ(results[1].status.code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(results[0].status.ok());
  EXPECT_EQ(RankOf(results[0].status), 1) << results[0].status;
  Join(2);
  results = Draw();
  EXPECT_TRUE(results[0].status.ok()) << results[0].status;
  EXPECT_EQ(results[0].drawn.size(), 1u);
}

// ---- What is read ----

// Bytes that this process has asked its files for.
int64_t BytesRead() {
  std::ifstream io("/proc/self/io");
  std::string key;
  int64_t bytes = 0;
  io >> key >> bytes;
  EXPECT_EQ(key, "rchar:");
  return bytes;
}

TEST(TensorParallelTest, ARankReadsItsOwnPartOfTheFilesAlone) {
  RandomModelOptions model;
  model.num_key_value_heads = 4;
  model.hidden_size = 128;
  model.vocab_size = 4000;
  ExecutorOptions options = OptionsFor(ModelPath("read", model));
  const auto bytes_of = [&](TensorRank rank) {
    options.tensor_rank = rank;
    const int64_t before = BytesRead();
    EXPECT_TRUE(LoadStageModel(options).ok());
    return BytesRead() - before;
  };
  bytes_of({});  // Whatever the first load alone reads.
  const int64_t whole = bytes_of({});
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_LT(static_cast<double>(bytes_of({rank, 4})), 0.27 * static_cast<double>(whole)) << rank;
  }
}

}  // namespace
}  // namespace baton
