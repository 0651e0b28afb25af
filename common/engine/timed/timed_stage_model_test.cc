#include "common/engine/timed/timed_stage_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/engine/timed/testing/timed_continuation.h"

namespace baton {
namespace {

constexpr int kVocab = 500;
constexpr int kLayers = 6;
constexpr int kPageSize = 16;
constexpr int kPages = 64;

TimedProfile Profile() {
  TimedProfile profile;
  profile.layers = kLayers;
  profile.hidden_size = 16;
  profile.kv_heads = 2;
  profile.head_dim = 8;
  profile.context_tokens = kPages * kPageSize;
  profile.prefill.token_us = 0.001;
  return profile;
}

ModelConfig Config(const TimedProfile& profile) {
  ModelConfig config = profile.Apply({});
  config.vocab_size = kVocab;
  config.eos_token_ids = {3};
  return config;
}

std::unique_ptr<TimedStageModel> Stage(const TimedProfile& profile, int begin, int end) {
  KvGeometry kv;
  kv.layer_begin = begin;
  kv.layer_end = end;
  kv.kv_heads = profile.kv_heads;
  kv.head_dim = profile.head_dim;
  kv.page_size = kPageSize;
  kv.page_count = kPages;
  kv.element_type = ElementType::kBFloat16;
  auto pool = KvPool::Create(kv);
  EXPECT_TRUE(pool.ok()) << pool.status();
  return std::make_unique<TimedStageModel>(profile, Config(profile), *std::move(pool));
}

// Stages behind each other over one sequence, on pages in an order of their own.
class Chain {
 public:
  Chain(const TimedProfile& profile, const std::vector<int>& cuts, uint64_t seed)
      : profile_(profile), pages_(kPages) {
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      stages_.push_back(Stage(profile, cuts[i], cuts[i + 1]));
    }
    std::iota(pages_.begin(), pages_.end(), 0);
    Random random(seed);
    for (size_t i = pages_.size() - 1; i > 0; --i) {
      std::swap(pages_[i], pages_[random.Below(i + 1)]);
    }
  }

  // The token after the last of `tokens`, which come after `prefix` others.
  absl::StatusOr<int32_t> Run(std::span<const int32_t> tokens, int prefix) {
    std::vector<std::byte> rows(tokens.size() * 32);
    std::vector<float> logits(kVocab);
    for (size_t i = 0; i < stages_.size(); ++i) {
      TensorView view{{}, ElementType::kBFloat16, static_cast<int64_t>(tokens.size()), 16};
      view.memory = HostSpan(rows);
      const bool last = i + 1 == stages_.size();
      Batch batch;
      SequenceSlice& slice = batch.slices.emplace_back();
      if (i == 0) slice.tokens = tokens;
      slice.token_count = static_cast<int>(tokens.size());
      slice.prefix_length = prefix;
      slice.pages = pages_;
      slice.wants_logits = last;
      const absl::Status status =
          stages_[i]->Forward(batch, i == 0 ? TensorView() : view, last ? TensorView() : view,
                              last ? std::span<float>(logits) : std::span<float>());
      if (!status.ok()) return status;
      if (spoil_rows && !last) rows[0] ^= std::byte{1};
    }
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }

  TimedStageModel& stage(size_t i) { return *stages_[i]; }
  std::vector<int32_t>& pages() { return pages_; }
  bool spoil_rows = false;

 private:
  const TimedProfile profile_;
  std::vector<std::unique_ptr<TimedStageModel>> stages_;
  std::vector<int32_t> pages_;
};

std::vector<int32_t> Prompt(int tokens, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> prompt(static_cast<size_t>(tokens));
  for (int32_t& token : prompt) token = static_cast<int32_t>(random.Below(kVocab));
  return prompt;
}

TEST(TimedStageModelTest, TokensFollowFromThePromptHoweverItIsCut) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const std::vector<int32_t> prompt = Prompt(static_cast<int>(random.Between(1, 400)), seed);
    const std::vector<int32_t> answer =
        TimedContinuation(prompt, 5, kVocab, Config({}).eos_token_ids);
    ASSERT_EQ(answer.size(), 5u);
    std::vector<int> cuts = {0, kLayers};
    if (seed % 2 == 0) cuts = {0, 1, 4, kLayers};
    Chain chain(Profile(), cuts, seed);
    absl::StatusOr<int32_t> next = 0;
    size_t begin = 0;
    while (begin < prompt.size()) {
      const auto count = std::min<size_t>(prompt.size() - begin, 16 * (1 + random.Below(6)));
      next = chain.Run(std::span(prompt).subspan(begin, count), static_cast<int>(begin));
      ASSERT_TRUE(next.ok()) << next.status();
      begin += count;
    }
    for (size_t i = 0; i < answer.size(); ++i) {
      EXPECT_EQ(*next, answer[i]) << i;
      const int32_t token[] = {answer[i]};
      next = chain.Run(token, static_cast<int>(prompt.size() + i));
      ASSERT_TRUE(next.ok()) << next.status();
    }
  }
}

TEST(TimedStageModelTest, AnotherTokenAnywhereIsAnotherAnswer) {
  const std::vector<int32_t> prompt = Prompt(300, 1);
  const auto answer = TimedContinuation(prompt, 8, kVocab, {});
  for (const size_t at : {size_t{0}, size_t{100}, size_t{299}}) {
    std::vector<int32_t> other = prompt;
    other[at] = (other[at] + 1) % kVocab;
    EXPECT_NE(TimedContinuation(other, 8, kVocab, {}), answer) << at;
  }
}

TEST(TimedStageModelTest, ForeignPagesAndActivationsShow) {
  const std::vector<int32_t> prompt = Prompt(160, 2);
  const std::span<const int32_t> tokens(prompt);
  Chain chain(Profile(), {0, 3, kLayers}, 3);
  ASSERT_TRUE(chain.Run(tokens.first(128), 0).ok());
  chain.spoil_rows = true;
  EXPECT_EQ(chain.Run(tokens.subspan(128), 128).status().code(), absl::StatusCode::kDataLoss);
  chain.spoil_rows = false;
  const auto right = chain.Run(tokens.subspan(128), 128);
  ASSERT_TRUE(right.ok()) << right.status();
  EXPECT_EQ(*right, TimedContinuation(prompt, 1, kVocab, Config({}).eos_token_ids)[0]);
  // The last page of the prefix, and one in its midst: positions 48 to 63.
  for (const size_t page : {size_t{7}, size_t{3}}) {
    std::swap(chain.pages()[page], chain.pages()[1]);
    const auto wrong = chain.Run(tokens.subspan(128), 128);
    ASSERT_TRUE(wrong.ok()) << wrong.status();
    EXPECT_NE(*wrong, *right) << page;
    std::swap(chain.pages()[page], chain.pages()[1]);
  }
}

TEST(TimedStageModelTest, ALayerWhoseKvIsMissingShows) {
  const std::vector<int32_t> prompt = Prompt(64, 4);
  Chain chain(Profile(), {0, kLayers}, 5);
  ASSERT_TRUE(chain.Run(prompt, 0).ok());
  // As if one stage's part of the hand-off had not come: the last page's layers from 2 on.
  const KvGeometry& kv = chain.stage(0).kv();
  KvPiece piece;
  piece.page = chain.pages()[3];
  piece.bytes = kv.LayerBytes();
  piece.offset_bytes = 2 * kv.LayerBytes();
  const MemorySpan landing = chain.stage(0).kv_memory().Landing(piece);
  std::memset(landing.Host().data(), 0, landing.Host().size());
  const int32_t token[] = {1};
  EXPECT_EQ(chain.Run(token, 64).status().code(), absl::StatusCode::kDataLoss);
}

TEST(TimedStageModelTest, StepsCostWhatTheProfileSays) {
  TimedProfile profile = Profile();
  profile.stage_overhead_us = 5;
  profile.prefill = {60, 0.6, 6, 0.06, 0};
  profile.prefill.floor_tokens = 32;
  profile.decode = {600, 12, 0.6};
  const auto stage = Stage(profile, 2, 4);
  Batch batch;
  batch.slices.resize(2);
  batch.slices[0].token_count = 16;
  batch.slices[0].prefix_length = 100;
  batch.slices[1].token_count = 8;
  // A third of the layers; two slices of 24 tokens together, 8 below the floor.
  const double work = 2 * 24 + 0.02 * (2 * 100 * 16 + 16 * 16 + 8 * 8);
  EXPECT_DOUBLE_EQ(stage->Micros(batch), 5 + 20 + 0.2 * 100 + work + 2 * 8);
  for (SequenceSlice& slice : batch.slices) slice.token_count = 1;
  EXPECT_DOUBLE_EQ(stage->Micros(batch), (600 + 12 * 2 + 0.6 * 100) / 3);
}

TEST(TimedStageModelTest, NoStepIsShorterThanPredicted) {
  TimedProfile profile = Profile();
  profile.stage_overhead_us = 3000;
  Chain chain(profile, {0, kLayers}, 6);
  const std::vector<int32_t> prompt = Prompt(32, 7);
  const int64_t begun_us = NowUs();
  ASSERT_TRUE(chain.Run(prompt, 0).ok());
  EXPECT_GE(NowUs() - begun_us, 3000);
}

Batch TwoTokens(int64_t submitted_us) {
  static constexpr int32_t kTokens[] = {7, 8};
  static constexpr int kPage = 0;
  Batch batch;
  batch.submitted_us = submitted_us;
  SequenceSlice& slice = batch.slices.emplace_back();
  slice.tokens = kTokens;
  slice.token_count = 2;
  slice.pages = std::span(&kPage, 1);
  return batch;
}

TEST(TimedStageModelTest, AStepBeginsWhenItWasSubmitted) {
  TimedProfile profile = Profile();
  profile.stage_overhead_us = 60e6;
  const auto stage = Stage(profile, 0, kLayers);
  const int64_t begun_us = NowUs();
  ASSERT_TRUE(stage->Forward(TwoTokens(begun_us - 60'000'000), {}, {}, {}).ok());
  EXPECT_LT(NowUs() - begun_us, 30'000'000);
}

TEST(TimedStageModelTest, AStepBeginsAfterTheOneBefore) {
  TimedProfile profile = Profile();
  profile.stage_overhead_us = 20'000;
  const auto stage = Stage(profile, 0, kLayers);
  const int64_t begun_us = NowUs();
  ASSERT_TRUE(stage->Forward(TwoTokens(begun_us), {}, {}, {}).ok());
  ASSERT_TRUE(stage->Forward(TwoTokens(begun_us), {}, {}, {}).ok());
  EXPECT_GE(NowUs() - begun_us, 40'000);
}

}  // namespace
}  // namespace baton
