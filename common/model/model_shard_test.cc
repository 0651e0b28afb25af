#include "common/model/model_shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/model/make_model.h"
#include "common/model/weight_names.h"
#include "common/model/weight_part.h"

namespace baton {
namespace {

ModelConfig Config() {
  ModelConfig config;
  config.hidden_size = 64;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 2;
  config.head_dim = 16;
  config.intermediate_size = 96;
  config.vocab_size = 304;
  return config;
}

TEST(ModelShardTest, DealsHeadsColumnsAndTokensOutInRuns) {
  const ModelShard shard = *ShardModel(Config(), {1, 2});
  EXPECT_EQ(shard.query_heads, (IndexRange{4, 8}));
  EXPECT_EQ(shard.kv_heads, (IndexRange{1, 2}));
  EXPECT_EQ(shard.inner, (IndexRange{48, 96}));
  EXPECT_EQ(shard.vocabulary, (IndexRange{152, 304}));
  EXPECT_EQ(shard.sizes.query_size(), 64);
  EXPECT_EQ(shard.sizes.kv_size(), 16);
  EXPECT_EQ(shard.sizes.intermediate_size, 48);
  EXPECT_EQ(shard.sizes.vocab_size, 152);
  EXPECT_EQ(shard.sizes.hidden_size, 64);
}

TEST(ModelShardTest, RanksBeyondTheKvHeadsShareThoseOfTheirQueries) {
  for (const int size : {4, 8}) {
    for (int rank = 0; rank < size; ++rank) {
      const ModelShard shard = *ShardModel(Config(), {rank, size});
      EXPECT_EQ(shard.kv_heads.size(), 1);
      // Four queries read a KV head.
      EXPECT_EQ(shard.kv_heads.begin, shard.query_heads.begin / 4);
      EXPECT_EQ(shard.kv_heads.begin, (shard.query_heads.end - 1) / 4);
    }
  }
}

TEST(ModelShardTest, DealsExpertsOutInRunsThatDifferByOne) {
  ModelConfig config = Config();
  config.num_hidden_layers = 3;
  config.intermediate_size = 90;  // No layer has it.
  config.experts.count = config.experts.held = 10;
  config.experts.active = 2;
  config.experts.inner = 24;
  int next = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const ModelShard shard = *ShardModel(config, {rank, 4});
    EXPECT_EQ(shard.experts, (IndexRange{next, next + (rank < 2 ? 3 : 2)}));
    EXPECT_EQ(shard.sizes.experts.held, shard.experts.size());
    EXPECT_EQ(shard.inner.size(), 0);
    const LayerWeights weights = LayerWeightsOf(config, shard, 1);
    ASSERT_EQ(weights.experts.size(), static_cast<size_t>(shard.experts.size()));
    EXPECT_EQ(weights.experts[0].up.name,
              "model.layers.1.mlp.experts." + std::to_string(next) + ".up_proj.weight");
    EXPECT_EQ(weights.router->ElementCount(), 10 * 64) << "every rank's";
    next = shard.experts.end;
  }
  EXPECT_EQ(next, 10);
  config.experts.count = 3;
  EXPECT_THAT(std::string(ShardModel(config, {0, 4}).status().message()),
              testing::HasSubstr("is 4, more than the model's 3 experts"));
  config.experts.count = 10;
  config.experts.dense_layers = {1};
  EXPECT_THAT(std::string(ShardModel(config, {0, 4}).status().message()),
              testing::HasSubstr("90 columns"));
}

TEST(ModelShardTest, BiasesOfSumsAreTheFirstRanks) {
  ModelConfig config = Config();
  config.qkv_bias = config.o_bias = config.mlp_bias = true;
  const LayerWeights first = LayerWeightsOf(config, *ShardModel(config, {0, 2}), 0);
  const LayerWeights second = LayerWeightsOf(config, *ShardModel(config, {1, 2}), 0);
  EXPECT_TRUE(first.o_bias.has_value() && first.mlp->down_bias.has_value());
  EXPECT_FALSE(second.o_bias.has_value() || second.mlp->down_bias.has_value());
  EXPECT_EQ(second.mlp->gate_bias->rows, (IndexRange{48, 96}));
}

TEST(ModelShardTest, RefusesWhatDoesNotDivideWithBothNumbers) {
  const auto refusal = [](TensorRank rank, auto change) {
    ModelConfig config = Config();
    change(config);
    const absl::Status status = ShardModel(config, rank).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return FieldOf(status).value_or("") + ": " + std::string(status.message());
  };
  const auto as_it_is = [](ModelConfig&) {};
  using testing::HasSubstr;
  EXPECT_THAT(refusal({0, 3}, as_it_is),
              HasSubstr("tp_size: is 3, which does not divide the model's 8 attention heads"));
  EXPECT_THAT(refusal({0, 4}, [](auto& c) { c.num_key_value_heads = 3; }),
              HasSubstr("3 key-value"));
  EXPECT_THAT(refusal({0, 4}, [](auto& c) { c.intermediate_size = 90; }), HasSubstr("90 columns"));
  EXPECT_THAT(refusal({0, 2}, [](auto& c) { c.vocab_size = 301; }), HasSubstr("301 tokens"));
  EXPECT_THAT(refusal({0, 0}, as_it_is), HasSubstr("tp_size: must be positive, is 0"));
  EXPECT_THAT(refusal({2, 2}, as_it_is), HasSubstr("tp_rank: is 2, must be one of the 2"));
  EXPECT_THAT(refusal({-1, 2}, as_it_is), HasSubstr("tp_rank"));
}

class WeightPartTest : public testing::Test {
 protected:
  WeightPartTest() : path_(testing::TempDir() + "/parts") {
    EXPECT_TRUE(MakeRandomModel(path_, {}).ok());
    config_ = *LoadModelConfig(path_);
  }
  std::vector<float> Read(const WeightSpec& spec) {
    WeightReader reader = *WeightReader::Open(path_);
    const StoredPart part(spec, *FindWeight(reader, spec));
    EXPECT_EQ(part.ElementCount(), spec.ElementCount());
    std::vector<float> values(static_cast<size_t>(part.ElementCount()));
    // In pieces that end within rows.
    const std::span<std::byte> bytes = std::as_writable_bytes(std::span(values));
    for (size_t at = 0; at < values.size(); at += 37) {
      const size_t count = std::min<size_t>(37, values.size() - at);
      EXPECT_TRUE(part.Read(static_cast<int64_t>(at), bytes.subspan(at * 4, count * 4)).ok());
    }
    return values;
  }

  std::string path_;
  ModelConfig config_;
};

TEST_F(WeightPartTest, RowsAndColumnsOfAllRanksAreTheWholeTensor) {
  const LayerWeights whole = LayerWeightsOf(config_, 1);
  const std::vector<float> down = Read(whole.mlp->down);
  const std::vector<float> gate = Read(whole.mlp->gate);
  std::vector<float> gates;
  for (int rank = 0; rank < 4; ++rank) {
    const ModelShard shard = *ShardModel(config_, {rank, 4});
    const LayerWeights part = LayerWeightsOf(config_, shard, 1);
    const std::vector<float> rows = Read(part.mlp->gate);
    gates.insert(gates.end(), rows.begin(), rows.end());
    const std::vector<float> columns = Read(part.mlp->down);
    const auto width = static_cast<size_t>(shard.inner.size());
    ASSERT_EQ(columns.size(), width * 64);
    for (size_t row = 0; row < 64; ++row) {
      const size_t at = row * 128 + static_cast<size_t>(shard.inner.begin);
      EXPECT_EQ(std::memcmp(&columns[row * width], &down[at], width * sizeof(float)), 0) << row;
    }
  }
  EXPECT_EQ(gates, gate);
}

TEST_F(WeightPartTest, NormsAreEveryRanks) {
  const ModelShard shard = *ShardModel(config_, {1, 2});
  const LayerWeights part = LayerWeightsOf(config_, shard, 0);
  const LayerWeights whole = LayerWeightsOf(config_, 0);
  EXPECT_EQ(Read(part.input_norm), Read(whole.input_norm));
  EXPECT_EQ(Read(*part.q_norm), Read(*whole.q_norm));
  EXPECT_EQ(VocabularyPart(EmbeddingWeight(config_), shard).ElementCount(), 150 * 64);
}

}  // namespace
}  // namespace baton
