// Every way in which a model directory can be broken or hostile: what it is refused with, and that
// the message names the key, tensor or file. One row per way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/model/fingerprint.h"
#include "common/model/make_model.h"
#include "common/model/model_config.h"
#include "common/model/safetensors.h"
#include "common/model/testing/model_directory.h"

namespace baton {
namespace {

using model_testing::Json;
using model_testing::ModelDirectory;
using model_testing::ReadFile;
using model_testing::WriteFile;

constexpr char kQ[] = "model.layers.1.self_attn.q_proj.weight";
constexpr char kIndex[] = "model.safetensors.index.json";

struct Row {
  std::string name;
  std::function<void(const ModelDirectory&)> break_it;
  absl::StatusCode code;
  std::string message;  // A fragment.
  RandomModelOptions model = {.num_hidden_layers = 2};
};

std::ostream& operator<<(std::ostream& out, const Row& row) { return out << row.name; }

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnsupported = absl::StatusCode::kUnimplemented;
constexpr auto kMissing = absl::StatusCode::kNotFound;

// config.json with `key` set to `value`.
Row Config(std::string name, const char* key, Json value, absl::StatusCode code,
           std::string message) {
  return {std::move(name),
          [key, value](const ModelDirectory& model) {
            model.EditConfig([&](Json& config) { config[key] = value; });
          },
          code, std::move(message)};
}

Row WithoutKey(const char* key) {
  return {std::string("Without_") + key,
          [key](const ModelDirectory& model) {
            model.EditConfig([&](Json& config) { config.erase(key); });
          },
          kInvalid, std::string("config.json: \"") + key + "\" is missing"};
}

// The header of model.safetensors, edited.
Row Header(std::string name, const std::function<void(Json&)>& edit, absl::StatusCode code,
           std::string message) {
  return {std::move(name), [edit](const ModelDirectory& model) { model.EditHeader(edit); }, code,
          std::move(message)};
}

// A model of two shards.
Row Sharded(std::string name, std::function<void(const ModelDirectory&)> break_it,
            absl::StatusCode code, std::string message) {
  return {std::move(name),
          std::move(break_it),
          code,
          std::move(message),
          {.num_hidden_layers = 2, .shards = 2}};
}

std::vector<Row> ConfigRows() {
  std::vector<Row> rows = {
      {"NoConfig", [](auto& m) { std::filesystem::remove(m.File("config.json")); }, kMissing,
       "config.json: no such file"},
      {"ConfigIsNotJson", [](auto& m) { WriteFile(m.File("config.json"), "{\"a\": "); }, kInvalid,
       "config.json: not valid JSON"},
      {"ConfigIsAList", [](auto& m) { WriteFile(m.File("config.json"), "[1]"); }, kInvalid,
       "config.json: must be a JSON object"},
      {"ConfigIsNestedDeeply",
       [](auto& m) { WriteFile(m.File("config.json"), std::string(100000, '[')); }, kInvalid,
       "config.json: JSON is nested 100000 levels deep"},
      {"ConfigRepeatsAKey",
       [](auto& m) {
         const std::string text = ReadFile(m.File("config.json"));
         WriteFile(m.File("config.json"), "{\"hidden_size\": 32, " + text.substr(1));
       },
       kInvalid, "config.json: the key \"hidden_size\" stands twice"},
      {"ConfigIsHuge", [](auto& m) { WriteFile(m.File("config.json"), std::string(2 << 20, ' ')); },
       kInvalid, "config.json: larger than the accepted"},
      Config("UnknownArchitecture", "architectures", {"MambaForCausalLM"}, kUnsupported,
             "\"architectures\" names MambaForCausalLM; supported are LlamaForCausalLM, "
             "Qwen2ForCausalLM, Qwen3ForCausalLM"),
      Config("TwoArchitectures", "architectures", {"LlamaForCausalLM", "Qwen2ForCausalLM"},
             kInvalid, "\"architectures\" must be a list of one name"),
      Config("OtherModelType", "model_type", "llama", kInvalid,
             "\"model_type\" is \"llama\", but Qwen3ForCausalLM has \"qwen3\""),
      Config("HiddenSizeIsAString", "hidden_size", "64", kInvalid,
             "\"hidden_size\" must be an integer, got \"64\""),
      Config("HiddenSizeIsAFraction", "hidden_size", 64.5, kInvalid,
             "\"hidden_size\" must be an integer"),
      Config("NegativeLayers", "num_hidden_layers", -1, kInvalid,
             "\"num_hidden_layers\" must be between 1 and"),
      Config("HugeVocabulary", "vocab_size", uint64_t{1} << 40, kInvalid,
             "\"vocab_size\" must be between 1 and"),
      Config("VocabularyPast63Bits", "vocab_size", UINT64_MAX, kInvalid,
             "\"vocab_size\" must be between 1 and"),
      Config("ZeroHeads", "num_attention_heads", 0, kInvalid, "\"num_attention_heads\" must be"),
      Config("KvHeadsDoNotDivide", "num_key_value_heads", 3, kInvalid,
             "\"num_key_value_heads\" is 3, which does not divide \"num_attention_heads\" (4)"),
      Config("OddHeadDim", "head_dim", 15, kInvalid, "\"head_dim\" must be even"),
      Config("NegativeEps", "rms_norm_eps", -1e-6, kInvalid, "\"rms_norm_eps\" must be between"),
      Config("TiedIsANumber", "tie_word_embeddings", 1, kInvalid,
             "\"tie_word_embeddings\" must be true or false"),
      Config("EosOutsideVocabulary", "eos_token_id", 300, kInvalid,
             "\"eos_token_id\" must be ids inside the vocabulary of 300"),
      Config("Gelu", "hidden_act", "gelu", kUnsupported, "\"hidden_act\" is \"gelu\""),
      Config("SlidingWindow", "use_sliding_window", true, kUnsupported, "\"use_sliding_window\""),
      Config("SlidingLayers", "layer_types", {"full_attention", "sliding_attention"}, kUnsupported,
             "\"layer_types\" has \"sliding_attention\""),
      Config("TooFewLayerTypes", "layer_types", {"full_attention"}, kInvalid,
             "\"layer_types\" must list \"num_hidden_layers\" (2)"),
      Config("AttentionBias", "attention_bias", true, kMissing, "self_attn.q_proj.bias"),
      Config("AttentionBiasIsANumber", "attention_bias", 1, kInvalid,
             "\"attention_bias\" must be true or false"),
      Config("MlpBias", "mlp_bias", true, kUnsupported, "\"mlp_bias\""),
      Config("Quantized", "quantization_config", {{"quant_method", "fp8"}}, kUnsupported,
             "\"quantization_config.weight_block_size\" must be [128, 128]"),
      Config("QuantizedOtherwise", "quantization_config", {{"quant_method", "awq"}}, kUnsupported,
             "\"quantization_config.quant_method\" is \"awq\"; supported is \"fp8\""),
      Config("StaticActivations", "quantization_config",
             {{"quant_method", "fp8"}, {"activation_scheme", "static"}}, kUnsupported,
             "\"quantization_config.activation_scheme\" is \"static\""),
      Config("QuantizationIsAList", "quantization_config", {1}, kInvalid,
             "\"quantization_config\" must be an object"),
      Config("PartialRotary", "partial_rotary_factor", 0.5, kUnsupported,
             "\"partial_rotary_factor\""),
      Config("Experts", "num_experts", 8, kUnsupported, "\"num_experts\""),
      Config("Softcapping", "final_logit_softcapping", 30.0, kUnsupported,
             "\"final_logit_softcapping\""),
      Config("Mrope", "rope_scaling", {{"type", "mrope"}, {"mrope_section", {1, 2}}}, kUnsupported,
             "\"rope_scaling.type\" is \"mrope\"; supported are"),
      Config("YarnWithoutFactor", "rope_scaling", {{"rope_type", "yarn"}}, kInvalid,
             "\"rope_scaling.factor\" is missing"),
      Config("YarnShrinks", "rope_scaling", {{"rope_type", "yarn"}, {"factor", 0.5}}, kInvalid,
             "\"rope_scaling.factor\" must be between 1"),
      Config("YarnBetas", "rope_scaling",
             {{"rope_type", "yarn"}, {"factor", 2.0}, {"beta_fast", 1.0}, {"beta_slow", 2.0}},
             kInvalid, "\"rope_scaling.beta_fast\" must be at least \"beta_slow\""),
      Config("YarnOriginalIsAString", "rope_scaling",
             {{"rope_type", "yarn"}, {"original_max_position_embeddings", "1"}}, kInvalid,
             "\"rope_scaling.original_max_position_embeddings\" must be an integer"),
      Config("LinearWithoutFactor", "rope_scaling", {{"type", "linear"}}, kInvalid,
             "\"rope_scaling.factor\" is missing"),
      Config("LongRopeWithoutFactors", "rope_scaling", {{"type", "longrope"}}, kInvalid,
             "\"rope_scaling.short_factor\" is missing"),
      Config("LongRopeFactorsTooFew", "rope_scaling",
             {{"type", "longrope"}, {"short_factor", {1.0}}, {"long_factor", {1.0}}}, kInvalid,
             "\"rope_scaling.short_factor\" must list half of head_dim"),
      Config("ZeroKvHeads", "num_key_value_heads", 0, kInvalid, "\"num_key_value_heads\" must be"),
      Config("ScalingWithoutType", "rope_scaling", {{"factor", 4.0}}, kInvalid,
             "\"rope_scaling.rope_type\" is missing"),
      Config("ScalingIsAList", "rope_scaling", {1}, kInvalid, "\"rope_scaling\" must be an object"),
      Config("Llama3WithoutFactor", "rope_parameters", {{"rope_type", "llama3"}}, kInvalid,
             "\"rope_parameters.factor\" is missing"),
      Config("TwoThetas", "rope_parameters", {{"rope_theta", 5e5}}, kInvalid,
             "\"rope_parameters.rope_theta\" differs"),
      {"GenerationEosOutsideVocabulary",
       [](auto& m) { WriteFile(m.File("generation_config.json"), R"({"eos_token_id": [-1]})"); },
       kInvalid, "generation_config.json: \"eos_token_id\""},
  };
  for (const char* key : {"architectures", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "vocab_size"}) {
    rows.push_back(WithoutKey(key));
  }
  return rows;
}

// A model of two layers with eight experts, the first of them dense.
const RandomModelOptions kSparse = {
    .architecture = "Qwen3MoeForCausalLM", .mlp_only_layers = {0}, .num_hidden_layers = 2};

Row Sparse(std::string name, const char* key, Json value, absl::StatusCode code,
           std::string message) {
  Row row = Config(std::move(name), key, std::move(value), code, std::move(message));
  row.model = kSparse;
  return row;
}

Row SparseTensors(std::string name, const std::function<void(Json&)>& edit, absl::StatusCode code,
                  std::string message) {
  Row row = Header(std::move(name), edit, code, std::move(message));
  row.model = kSparse;
  return row;
}

// FP8 with scales; the shapes of 200 columns have two blocks.
Row Fp8(std::string name, const std::function<void(Json&)>& edit, absl::StatusCode code,
        std::string message) {
  Row row = Header(std::move(name), edit, code, std::move(message));
  row.model.fp8 = true;
  row.model.intermediate_size = 200;
  return row;
}

std::vector<Row> Fp8Rows() {
  constexpr char kDown[] = "model.layers.1.mlp.down_proj.weight";
  constexpr char kScale[] = "model.layers.1.mlp.down_proj.weight_scale_inv";
  Row told = Fp8(
      "Fp8ThatConfigDoesNotSay", [](Json&) {}, kUnsupported, "has dtype F8_E4M3");
  told.break_it = [](const ModelDirectory& model) {
    model.EditConfig([](Json& config) { config.erase("quantization_config"); });
  };
  return {
      told,
      Fp8(
          "NoScales", [=](Json& h) { h.erase(kScale); }, kMissing, kScale),
      Fp8(
          "ScalesOfAnotherShape",
          [=](Json& h) {
            h[kScale]["shape"] = {2, 1};
          },
          kInvalid, "weight_scale_inv has shape [2, 1], but config.json makes it [1, 2]"),
      Fp8(
          "ScalesAreIntegers", [=](Json& h) { h[kScale]["dtype"] = "I32"; }, kUnsupported,
          "weight_scale_inv has dtype I32"),
      Fp8(
          "AnotherFp8", [=](Json& h) { h[kDown]["dtype"] = "F8_E5M2"; }, kUnsupported,
          "down_proj.weight has dtype F8_E5M2"),
      Fp8(
          "Fp8Norm",
          [](Json& h) {
            h["model.norm.weight"]["dtype"] = "F8_E4M3";
            h["model.norm.weight"]["data_offsets"][1] =
                h["model.norm.weight"]["data_offsets"][0].get<int>() + 64;
          },
          kUnsupported, "model.norm.weight has dtype F8_E4M3"),
  };
}

std::vector<Row> SparseRows() {
  constexpr char kUp[] = "model.layers.1.mlp.experts.5.up_proj.weight";
  constexpr char kRouter[] = "model.layers.1.mlp.gate.weight";
  return {
      Sparse("ZeroExperts", "num_experts", 0, kInvalid, "\"num_experts\" must be between 1 and"),
      Sparse("ExpertsAreAString", "num_experts", "8", kInvalid, "\"num_experts\" must be an int"),
      Sparse("HugeExperts", "num_experts", 1 << 30, kInvalid, "\"num_experts\" must be between 1"),
      Sparse("TwoNumbersOfExperts", "num_local_experts", 4, kInvalid,
             "\"num_local_experts\" is 4, but \"num_experts\" is 8"),
      Sparse("ZeroActive", "num_experts_per_tok", 0, kInvalid, "\"num_experts_per_tok\" must be"),
      Sparse("MoreActiveThanExperts", "num_experts_per_tok", 9, kInvalid,
             "\"num_experts_per_tok\" is 9, more than \"num_experts\" (8)"),
      Sparse("ZeroStep", "decoder_sparse_step", 0, kInvalid,
             "\"decoder_sparse_step\" must be between 1 and 2"),
      Sparse("DenseLayerPastTheLast", "mlp_only_layers", {2}, kInvalid,
             "\"mlp_only_layers\" must list layers from 0 to 1, got 2"),
      Sparse("NegativeDenseLayer", "mlp_only_layers", {-1}, kInvalid, "got -1"),
      Sparse("DenseLayersAreANumber", "mlp_only_layers", 1, kInvalid,
             "\"mlp_only_layers\" must be a list"),
      Sparse("TooManyDenseLayers", "mlp_only_layers", {0, 0, 0}, kInvalid, "must be a list of at"),
      Sparse("NormIsANumber", "norm_topk_prob", 1, kInvalid, "\"norm_topk_prob\" must be true"),
      Sparse("ZeroExpertColumns", "moe_intermediate_size", 0, kInvalid,
             "\"moe_intermediate_size\" must be"),
      Sparse("SharedExpert", "shared_expert_intermediate_size", 32, kUnsupported,
             "\"shared_expert_intermediate_size\""),
      Sparse("MoreExpertsThanInTheFile", "num_experts", 9, kInvalid,
             "tensor model.layers.1.mlp.gate.weight has shape [8, 64], but config.json makes it "
             "[9, 64]"),
      Sparse("OtherExpertColumns", "moe_intermediate_size", 33, kInvalid,
             "tensor model.layers.1.mlp.experts.0.gate_proj.weight has shape [32, 64], but "
             "config.json makes it [33, 64]"),
      {"ManyExpertsInManyLayers",
       [](const ModelDirectory& m) {
         m.EditConfig([](Json& config) {
           config["num_experts"] = 4096;
           config["num_hidden_layers"] = 4096;
         });
       },
       kInvalid, "makes more than 65536", kSparse},
      SparseTensors(
          "NoRouter", [=](Json& h) { h.erase(kRouter); }, kMissing, kRouter),
      SparseTensors(
          "NoExpert", [=](Json& h) { h.erase(kUp); }, kMissing, kUp),
      SparseTensors(
          "ExpertOfAnotherShape",
          [=](Json& h) {
            h[kUp]["shape"] = {64, 32};
          },
          kInvalid, "up_proj.weight has shape [64, 32], but config.json makes it [32, 64]"),
      {"NoShardOfExperts",
       [](auto& m) { std::filesystem::remove(m.File("model-00003-of-00003.safetensors")); },
       kMissing,
       "model-00003-of-00003.safetensors: No such file",
       {.architecture = "MixtralForCausalLM", .num_hidden_layers = 2, .shards = 3}},
      {"ZeroWindow",
       [](auto& m) { m.EditConfig([](Json& config) { config["sliding_window"] = 0; }); },
       kInvalid,
       "\"sliding_window\" must be between 1",
       {.architecture = "MistralForCausalLM"}},
      {"MixtralWithoutTheta",
       [](auto& m) { m.EditConfig([](Json& config) { config.erase("rope_theta"); }); },
       kInvalid,
       "\"rope_theta\" is missing",
       {.architecture = "MixtralForCausalLM"}},
  };
}

std::vector<Row> WeightRows() {
  return {
      {"NoWeights", [](auto& m) { std::filesystem::remove(m.File("model.safetensors")); }, kMissing,
       "has neither model.safetensors nor model.safetensors.index.json"},
      {"EmptyFile", [](auto& m) { WriteFile(m.File("model.safetensors"), ""); }, kInvalid,
       "model.safetensors: not a safetensors file"},
      {"HeaderPastTheFile", [](auto& m) { m.WriteLength(1 << 30); }, kInvalid,
       "model.safetensors: header of 1073741824 bytes does not fit the file"},
      {"HeaderLengthOverflows", [](auto& m) { m.WriteLength(UINT64_MAX); }, kInvalid,
       "header of 18446744073709551615 bytes"},
      {"HeaderIsNotJson", [](auto& m) { m.WriteHeader("garbage"); }, kInvalid,
       "model.safetensors: header: not valid JSON"},
      {"HeaderIsAList", [](auto& m) { m.WriteHeader("[]"); }, kInvalid, "must be a JSON object"},
      {"HeaderIsNestedDeeply",
       [](auto& m) {
         m.WriteHeader("{\"a\":" + std::string(5000, '[') + std::string(5000, ']') + "}");
       },
       kInvalid, "nested 5001 levels deep"},
      {"HeaderRepeatsATensor",
       [](auto& m) {
         m.WriteHeader(R"({"x": {"dtype":"F32","shape":[0],"data_offsets":[0,0]},)"
                       R"("x": {"dtype":"F32","shape":[0],"data_offsets":[0,0]}})");
       },
       kInvalid, "the key \"x\" stands twice"},
      {"TruncatedData",
       [](auto& m) {
         const std::string file = ReadFile(m.File("model.safetensors"));
         WriteFile(m.File("model.safetensors"), file.substr(0, file.size() - 100));
       },
       kInvalid, "tensor lm_head.weight has \"data_offsets\""},
      Header(
          "MissingTensor", [](Json& h) { h.erase(kQ); }, kMissing, kQ),
      Header(
          "TensorIsANumber", [](Json& h) { h[kQ] = 7; }, kInvalid, kQ),
      Header(
          "NoDtype", [](Json& h) { h[kQ].erase("dtype"); }, kInvalid, "has no \"dtype\""),
      Header(
          "UnknownDtype", [](Json& h) { h[kQ]["dtype"] = "F4"; }, kUnsupported, "has dtype \"F4\""),
      Header(
          "IntegerWeights", [](Json& h) { h[kQ]["dtype"] = "I32"; }, kUnsupported,
          "has dtype I32; supported are F32, BF16 and F16"),
      Header(
          "NoShape", [](Json& h) { h[kQ].erase("shape"); }, kInvalid, "must have a \"shape\""),
      Header(
          "NegativeSize",
          [](Json& h) {
            h[kQ]["shape"] = {-64, 64};
          },
          kInvalid, "has the size -64"),
      Header(
          "ManyDimensions", [](Json& h) { h[kQ]["shape"] = std::vector<int>(1000, 1); }, kInvalid,
          "\"shape\" of at most 8"),
      Header(
          "ShapeOverflows",
          [](Json& h) {
            h[kQ]["shape"] = {uint64_t{1} << 32, uint64_t{1} << 32};
          },
          kInvalid, "whose byte size overflows"),
      Header(
          "SizePast63Bits", [](Json& h) { h[kQ]["shape"] = {UINT64_MAX}; }, kInvalid,
          "whose byte size overflows"),
      Header(
          "ShapeDoesNotMatchBytes",
          [](Json& h) {
            h[kQ]["shape"] = {64, 65};
          },
          kInvalid, "but its shape [64,65] of F32 takes 16640"),
      Header(
          "OtherShapeThanConfigs",
          [](Json& h) {
            h[kQ]["shape"] = {32, 128};
          },
          kInvalid, "has shape [32, 128], but config.json makes it [64, 64]"),
      Header(
          "OffsetsBackwards",
          [](Json& h) {
            h[kQ]["data_offsets"] = {16384, 0};
          },
          kInvalid, "outside the file's"),
      Header(
          "OffsetsPastTheFile",
          [](Json& h) {
            const uint64_t begin = uint64_t{1} << 40;
            h[kQ]["data_offsets"] = {begin, begin + 16384};
          },
          kInvalid, "outside the file's"),
      Header(
          "NegativeOffsets",
          [](Json& h) {
            h[kQ]["data_offsets"] = {-16384, 0};
          },
          kInvalid, "must have \"data_offsets\""),
      Header(
          "ThreeOffsets",
          [](Json& h) {
            h[kQ]["data_offsets"] = {0, 1, 2};
          },
          kInvalid, "must have \"data_offsets\""),
      Header(
          "Overlap",
          [](Json& h) {
            h[kQ]["data_offsets"] = {4, 16388};
          },
          kInvalid,
          "tensors model.embed_tokens.weight and model.layers.1.self_attn.q_proj.weight "
          "overlap"),
      Sharded(
          "NoShard",
          [](auto& m) { std::filesystem::remove(m.File("model-00002-of-00002.safetensors")); },
          kMissing, "model-00002-of-00002.safetensors: No such file"),
      Sharded(
          "ShardIsNotAString",
          [](auto& m) { m.EditJson(kIndex, [](Json& j) { j["weight_map"][kQ] = 3; }); }, kInvalid,
          "which is not the name of a .safetensors file beside it"),
      Sharded(
          "ShardAboveTheDirectory",
          [](auto& m) {
            m.EditJson(kIndex, [](Json& j) { j["weight_map"][kQ] = "../x.safetensors"; });
          },
          kInvalid, "\"../x.safetensors\", which is not the name"),
      Sharded(
          "ShardAtAnAbsolutePath",
          [](auto& m) {
            m.EditJson(kIndex, [](Json& j) { j["weight_map"][kQ] = "/etc/x.safetensors"; });
          },
          kInvalid, "which is not the name"),
      Sharded(
          "ShardIsAnotherKindOfFile",
          [](auto& m) { m.EditJson(kIndex, [](Json& j) { j["weight_map"][kQ] = "config.json"; }); },
          kInvalid, "which is not the name"),
      Sharded(
          "NoWeightMap", [](auto& m) { WriteFile(m.File(kIndex), "{}"); }, kInvalid,
          "\"weight_map\" is missing"),
      Sharded(
          "TensorNotInIndex",
          [](auto& m) { m.EditJson(kIndex, [](Json& j) { j["weight_map"].erase(kQ); }); }, kMissing,
          kQ),
      Sharded(
          "TensorInAnotherShard",
          [](auto& m) {
            m.EditJson(kIndex,
                       [](Json& j) { j["weight_map"][kQ] = "model-00001-of-00002.safetensors"; });
          },
          kMissing, "model-00001-of-00002.safetensors: has no tensor"),
  };
}

// Reads all that a single stage would.
absl::Status Load(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(path));
  BATON_ASSIGN_OR_RETURN(WeightReader reader, WeightReader::Open(path));
  return FingerprintStage(reader, config, 0, config.num_hidden_layers).status();
}

class BrokenModelTest : public testing::TestWithParam<Row> {};

TEST_P(BrokenModelTest, IsRefused) {
  const Row& row = GetParam();
  const ModelDirectory model = {testing::TempDir() + "/broken_" + row.name};
  ASSERT_TRUE(MakeRandomModel(model.path, row.model).ok());
  ASSERT_TRUE(Load(model.path).ok());
  row.break_it(model);
  const absl::Status status = Load(model.path);
  EXPECT_EQ(status.code(), row.code) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(row.message));
}

constexpr auto kRowName = [](const auto& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(Config, BrokenModelTest, testing::ValuesIn(ConfigRows()), kRowName);
INSTANTIATE_TEST_SUITE_P(Fp8, BrokenModelTest, testing::ValuesIn(Fp8Rows()), kRowName);
INSTANTIATE_TEST_SUITE_P(Sparse, BrokenModelTest, testing::ValuesIn(SparseRows()), kRowName);
INSTANTIATE_TEST_SUITE_P(Weights, BrokenModelTest, testing::ValuesIn(WeightRows()), kRowName);

}  // namespace
}  // namespace baton
