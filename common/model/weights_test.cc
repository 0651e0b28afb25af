// Reading what MakeRandomModel wrote: shards, ranges, fingerprints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/model/fingerprint.h"
#include "common/model/make_model.h"
#include "common/model/model_config.h"
#include "common/model/safetensors.h"
#include "common/model/weight_names.h"

namespace baton {
namespace {

struct Model {
  Model(const std::string& name, const RandomModelOptions& options)
      : path(testing::TempDir() + "/" + name) {
    const absl::Status made = MakeRandomModel(path, options);
    EXPECT_TRUE(made.ok()) << made;
    config = *LoadModelConfig(path);
  }
  WeightReader Reader() const { return *WeightReader::Open(path); }
  ModelFingerprint Fingerprint(int begin, int end) const {
    WeightReader reader = Reader();
    return *FingerprintStage(reader, config, begin, end);
  }

  std::string path;
  ModelConfig config;
};

std::string Bytes(const StoredTensor& tensor) {
  std::string bytes(tensor.byte_count, '\0');
  const absl::Status read = tensor.Read(0, std::as_writable_bytes(std::span(bytes)));
  EXPECT_TRUE(read.ok()) << read;
  return bytes;
}

TEST(WeightReaderTest, OpensOnlyTheShardsThatHoldWhatIsAsked) {
  const Model model("lazy", {.num_hidden_layers = 8, .shards = 8});
  WeightReader reader = model.Reader();
  EXPECT_EQ(reader.open_files(), 0);
  for (const WeightSpec& spec : LayerWeightsOf(model.config, 3).All()) {
    ASSERT_TRUE(FindWeight(reader, spec).ok());
  }
  EXPECT_LE(reader.open_files(), 2);
  EXPECT_TRUE(reader.Contains("lm_head.weight"));
  EXPECT_FALSE(reader.Contains("lm_head.bias"));
}

TEST(WeightReaderTest, AFileThatShrinksWhileItIsOpenIsAStatus) {
  const Model model("shrinks", {});
  WeightReader reader = model.Reader();
  const auto tensor = FindWeight(reader, HeadWeight(model.config));
  ASSERT_TRUE(tensor.ok());
  std::vector<std::byte> bytes(tensor->byte_count);
  ASSERT_TRUE(tensor->Read(0, bytes).ok());
  const std::string file = model.path + "/model.safetensors";
  std::filesystem::resize_file(file, tensor->offset + 100);
  EXPECT_TRUE(tensor->Read(0, std::span(bytes).first(100)).ok());
  const absl::Status status = tensor->Read(0, bytes);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(file + ": ends at byte "));
  EXPECT_EQ(FingerprintStage(reader, model.config, 0, 4).status().code(),
            absl::StatusCode::kDataLoss);
}

TEST(WeightReaderTest, AStageDoesNotMissOtherStagesShards) {
  const Model model("partial", {.num_hidden_layers = 4, .shards = 8});
  std::filesystem::remove(model.path + "/model-00008-of-00008.safetensors");
  WeightReader reader = model.Reader();
  EXPECT_TRUE(FingerprintStage(reader, model.config, 0, 2).ok());
  EXPECT_FALSE(FingerprintStage(reader, model.config, 2, 4).ok());
}

TEST(MakeRandomModelTest, WeightsDependOnTheSeedNotOnSharding) {
  const Model whole("whole", {});
  const Model sharded("sharded", {.shards = 3});
  const Model other("other", {.seed = 2});
  const WeightSpec spec = LayerWeightsOf(whole.config, 1).mlp->down;
  const auto bytes = [&](const Model& model) {
    WeightReader reader = model.Reader();
    return Bytes(*FindWeight(reader, spec));
  };
  EXPECT_EQ(bytes(whole), bytes(sharded));
  EXPECT_NE(bytes(whole), bytes(other));
}

TEST(MakeRandomModelTest, RefusesImpossibleModels) {
  const std::string path = testing::TempDir() + "/impossible";
  EXPECT_EQ(MakeRandomModel(path, {.architecture = "None"}).code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_EQ(MakeRandomModel(path, {.hidden_size = 0}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeRandomModel(path, {.dtype = DType::kI8}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeRandomModel(path, {.shards = 0}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(StageWeightsTest, PartsMakeTheWholeAndTiedHeadsShareTheEmbeddings) {
  const Model untied("untied", {});
  EXPECT_EQ(StageWeights(untied.config, 0, 4).size(),
            StageWeights(untied.config, 0, 1).size() + StageWeights(untied.config, 1, 4).size());
  const Model tied("tied", {.tie_word_embeddings = true});
  // A stage of its own needs the embeddings as head; the whole model has them once.
  EXPECT_EQ(StageWeights(tied.config, 0, 4).size() + 1,
            StageWeights(tied.config, 0, 1).size() + StageWeights(tied.config, 1, 4).size());
  EXPECT_EQ(HeadWeight(tied.config).name, "model.embed_tokens.weight");
}

TEST(FingerprintTest, StagesHashTheirOwnPartsAlike) {
  const Model model("stages", {});
  const ModelFingerprint whole = model.Fingerprint(0, 4);
  const ModelFingerprint first = model.Fingerprint(0, 1);
  const ModelFingerprint last = model.Fingerprint(1, 4);
  EXPECT_EQ(whole.layer_hashes.size(), 4u);
  EXPECT_EQ(first.config_hash, last.config_hash);
  EXPECT_EQ(first.layer_hashes.at(0), whole.layer_hashes.at(0));
  EXPECT_EQ(last.layer_hashes.at(3), whole.layer_hashes.at(3));
  EXPECT_EQ(first.embedding_hash, whole.embedding_hash);
  EXPECT_EQ(first.head_hash, 0u);
  EXPECT_EQ(last.embedding_hash, 0u);
  EXPECT_EQ(last.head_hash, whole.head_hash);
}

TEST(FingerprintTest, OneChangedByteChangesOneLayer) {
  const Model model("changed", {});
  const ModelFingerprint before = model.Fingerprint(0, 4);
  {
    // The head's last byte lies at the end; a byte of layer 3 lies before final norm and head.
    const auto size =
        static_cast<std::streamoff>(std::filesystem::file_size(model.path + "/model.safetensors"));
    const std::streamoff tail = (64 + 300 * 64) * 4 + 8;
    std::fstream file(model.path + "/model.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(size - tail);
    file.put('\x55');
  }
  const ModelFingerprint after = model.Fingerprint(0, 4);
  EXPECT_NE(after.layer_hashes.at(3), before.layer_hashes.at(3));
  EXPECT_EQ(after.layer_hashes.at(2), before.layer_hashes.at(2));
  EXPECT_EQ(after.head_hash, before.head_hash);
  EXPECT_EQ(after.config_hash, before.config_hash);
}

// Processes of two versions serve one model together only if both hash it alike.
TEST(FingerprintTest, IsThatOfOlderVersions) {
  struct Known {
    const char* architecture;
    uint64_t config, layer;
  };
  for (const Known& known :
       {Known{"LlamaForCausalLM", 6849734216383156144u, 16322114717704222970u},
        {"Qwen2ForCausalLM", 6399448667843903179u, 14350598816993100296u},
        {"Qwen3ForCausalLM", 13672576586583858406u, 17790028817117714122u},
        {"Qwen3MoeForCausalLM", 5055328576568817310u, 18150349727766946823u},
        {"MistralForCausalLM", 1459127873687919843u, 16322114717704222970u},
        {"MixtralForCausalLM", 10232631961040486278u, 16276692361741402468u},
        {"DeepseekV2ForCausalLM", 816307706392576015u, 2478748929949694382u},
        {"DeepseekV3ForCausalLM", 13680126872922632203u, 14704801697236956546u}}) {
    const Model model(known.architecture,
                      {.architecture = known.architecture, .num_hidden_layers = 2, .fp8 = true});
    const ModelFingerprint fingerprint = model.Fingerprint(1, 2);
    EXPECT_EQ(fingerprint.config_hash, known.config) << known.architecture;
    EXPECT_EQ(fingerprint.layer_hashes.at(1), known.layer) << known.architecture;
  }
}

TEST(FingerprintTest, ConfigCountsWhatChangesLogitsOnly) {
  ModelConfig config = Model("config", {}).config;
  const uint64_t before = ConfigFingerprint(config);
  config.eos_token_ids = {1, 2, 3};
  EXPECT_EQ(ConfigFingerprint(config), before);
  config.rope_theta = 10000.000001;
  EXPECT_NE(ConfigFingerprint(config), before);
  config.rope_theta = 10000;
  std::set<uint64_t> seen = {before};
  const auto differs = [&](const char* what, auto change) {
    RopeScaling scaling;
    scaling.divisors = {1, 2};
    change(scaling);
    config.rope_scaling = scaling;
    EXPECT_TRUE(seen.insert(ConfigFingerprint(config)).second) << what;
  };
  differs("linear", [](RopeScaling&) {});
  differs("factor", [](RopeScaling& s) { s.factor = 2; });
  differs("llama3", [](RopeScaling& s) { s.kind = RopeKind::kLlama3; });
  const auto yarn = [&](const char* what, auto change) {
    differs(what, [&](RopeScaling& s) {
      s.kind = RopeKind::kYarn;
      change(s);
    });
  };
  yarn("yarn", [](RopeScaling&) {});
  yarn("magnitude", [](RopeScaling& s) { s.magnitude = 1.1; });
  yarn("original", [](RopeScaling& s) { s.original_max_position_embeddings = 64; });
  yarn("beta_fast", [](RopeScaling& s) { s.beta_fast = 31; });
  yarn("beta_slow", [](RopeScaling& s) { s.beta_slow = 2; });
  yarn("truncate", [](RopeScaling& s) { s.truncate = false; });
  const auto longrope = [&](const char* what, auto change) {
    differs(what, [&](RopeScaling& s) {
      s.kind = RopeKind::kLongRope;
      change(s);
    });
  };
  longrope("longrope", [](RopeScaling&) {});
  longrope("divisors", [](RopeScaling& s) { s.divisors[1] = 3; });
  longrope("its magnitude", [](RopeScaling& s) { s.magnitude = 1.1; });
}

}  // namespace
}  // namespace baton
