// Ranks of the timed executor: the same tokens whatever their number, slices that come together
// again, and steps that are not the same on all of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/engine/testing/model_chain.h"
#include "common/engine/testing/rank_chain.h"
#include "common/engine/timed/testing/timed_continuation.h"
#include "common/engine/timed/timed_stage_model.h"

namespace baton {
namespace {

using testing::RankChain;
using testing::RankedStage;

constexpr char kProfile[] = R"({
  "name": "small",
  "model": {"layers": 6, "hidden_size": 16, "kv_heads": 2, "head_dim": 8, "context_tokens": 1024,
            "dtype": "bfloat16", "kv_dtype": "bfloat16"},
  "prefill": {"token_us": 0.001},
  "decode": {"overhead_us": 1}
})";

ExecutorOptions Timed(bool slices) {
  ExecutorOptions options = OptionsFor(SmallModel());
  options.backend = Backend::kTimed;
  options.timed_profile = ::testing::TempDir() + "/ranks_profile.json";
  std::ofstream(options.timed_profile) << kProfile;
  options.slice_activations = slices;
  return options;
}

int32_t Argmax(const std::vector<float>& logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

TEST(TimedRanksTest, TokensFollowFromThePromptWhateverTheRanksAndSlices) {
  const std::vector<int32_t> prompt = RandomPrompt(150);
  for (const int tp_size : {1, 2, 4}) {
    for (const bool slices : {false, true}) {
      for (const std::vector<int>& cuts : {std::vector<int>{0}, std::vector<int>{0, 1, 4}}) {
        SCOPED_TRACE(absl::StrCat(tp_size, slices ? " with" : " without", " slices, ", cuts.size(),
                                  " stages"));
        RankChain chain(Timed(slices), cuts, tp_size);
        StageModel& first = chain.stage(0).rank(0);
        EXPECT_EQ(first.activation_columns(), slices ? 16 / tp_size : 16);
        EXPECT_EQ(first.kv().kv_heads, std::max(1, 2 / tp_size));
        const auto answer =
            TimedContinuation(prompt, 4, first.config().vocab_size, first.config().eos_token_ids);
        chain.Logits(std::span(prompt).first(64), 0);
        std::vector<float> logits = chain.Logits(std::span(prompt).subspan(64), 64);
        for (size_t i = 0; i < answer.size(); ++i) {
          EXPECT_EQ(Argmax(logits), answer[i]) << i;
          logits = chain.Logits(std::span(answer).subspan(i, 1), static_cast<int>(150 + i));
        }
      }
    }
  }
}

// The keys of its own heads hold every word, so the next rank that gets these heads finds it.
TEST(TimedRanksTest, EveryHeadHasTheWords) {
  RankChain whole(Timed(false), {0}, 1);
  RankChain shared(Timed(false), {0}, 2);
  const std::vector<int32_t> prompt = RandomPrompt(40);
  whole.Logits(prompt, 0);
  shared.Logits(prompt, 0);
  StageModel& one = whole.stage(0).rank(0);
  const size_t head_bytes = one.kv().HeadBytes();
  const auto keys = [&](StageModel& model, size_t head) {
    return PageOf(model, 1).subspan(head * head_bytes, head_bytes);
  };
  EXPECT_TRUE(std::ranges::equal(keys(one, 0), keys(one, 1)));
  for (const size_t rank : {size_t{0}, size_t{1}}) {
    EXPECT_EQ(shared.stage(0).rank(rank).kv().head_begin, static_cast<int>(rank));
    EXPECT_TRUE(std::ranges::equal(keys(shared.stage(0).rank(rank), 0), keys(one, rank)));
  }
  // One head's part of a hand-off that has not come.
  const int32_t token = 5;
  std::memset(PageOf(one, 2).data() + head_bytes, 0, head_bytes);
  const std::vector<int32_t> pages = {0, 1, 2};
  const SequenceSlice slice = {{std::span(&token, 1), 1, 40, pages}, true};
  std::vector<float> logits(300);
  const absl::Status status = one.Forward({{slice}}, {}, {}, logits);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("head 1, is not that of layer 0, head 0"), std::string::npos)
      << status;
}

TEST(TimedRanksTest, RanksThatRunAnotherBatchShow) {
  RankedStage stage(Timed(false), 4);
  std::vector<std::vector<int32_t>> prompts(4, RandomPrompt(40));
  prompts[2][7] ^= 1;
  const std::vector<int32_t> pages = {0, 1, 2};
  std::vector<absl::Status> statuses(4);
  testing::ForEachRank(4, [&](size_t rank) {
    std::vector<float> logits(rank == 0 ? 300 : 0);
    const SequenceSlice slice = {{prompts[rank], 40, 0, pages}, true};
    statuses[rank] = stage.rank(rank).Forward({{slice}}, {}, {}, logits);
  });
  for (const absl::Status& status : statuses) EXPECT_FALSE(status.ok());
  // The others' may be that of the first that found it, or that it has ended the group.
  EXPECT_TRUE(std::ranges::any_of(statuses, [](const absl::Status& status) {
    return status.code() == absl::StatusCode::kDataLoss;
  }));
}

TEST(TimedRanksTest, WhatCannotBeDealtOutIsRefused) {
  ExecutorOptions options = Timed(true);
  options.tensor_rank = {0, 3};
  EXPECT_NE(LoadStageModel(options).status().message().find("tp_size: is 3"), std::string::npos);
  options.tensor_rank = {0, 2};
  const auto model = LoadStageModel(options);
  ASSERT_TRUE(model.ok()) << model.status();
  const std::vector<int32_t> tokens = {1};
  const std::vector<int32_t> pages = {0};
  std::vector<float> logits(300);
  EXPECT_EQ(
      (*model)->Forward({{SequenceSlice{{tokens, 1, 0, pages}, true}}}, {}, {}, logits).code(),
      absl::StatusCode::kFailedPrecondition)
      << "no group has been joined";
}

}  // namespace
}  // namespace baton
