// Every way in which config.json, or what a model with experts adds, can be broken or hostile.
#include "common/model/testing/broken_model.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace baton::model_testing {
namespace {

BrokenModel WithoutKey(const char* key) {
  return {std::string("Without_") + key,
          [key](const ModelDirectory& model) {
            model.EditConfig([&](Json& config) { config.erase(key); });
          },
          kInvalid, std::string("config.json: \"") + key + "\" is missing"};
}

// "config_groups" of compressed-tensors.
BrokenModel Compressed(std::string name, const Json& groups, absl::StatusCode code,
                       std::string message) {
  return Config(std::move(name), "quantization_config",
                {{"quant_method", "compressed-tensors"},
                 {"format", "float-quantized"},
                 {"config_groups", groups}},
                code, std::move(message));
}

std::vector<BrokenModel> ConfigRows() {
  std::vector<BrokenModel> rows = {
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
      Config("QuantizedInOtherBlocks", "quantization_config",
             {{"quant_method", "fp8"}, {"weight_block_size", {64, 64}}}, kUnsupported,
             "\"quantization_config.weight_block_size\" must be [128, 128]"),
      Config("QuantizedOtherwise", "quantization_config", {{"quant_method", "awq"}}, kUnsupported,
             "\"quantization_config.quant_method\" is \"awq\"; supported is \"fp8\" or "
             "\"compressed-tensors\""),
      Config("OtherActivations", "quantization_config",
             {{"quant_method", "fp8"}, {"activation_scheme", "both"}}, kUnsupported,
             "\"quantization_config.activation_scheme\" is \"both\""),
      Config("CompressedIntegers", "quantization_config",
             {{"quant_method", "compressed-tensors"}, {"format", "pack-quantized"}}, kUnsupported,
             "\"quantization_config.format\" is \"pack-quantized\"; supported is"),
      Compressed("CompressedWithoutGroups", nullptr, kInvalid, "config_groups\" must be an object"),
      Compressed("CompressedGroupIsANumber", {{"group_0", 1}}, kInvalid,
                 "config_groups.group_0\" must be an object"),
      Compressed("CompressedActivationsAlone", {{"group_0", {{"weights", nullptr}}}}, kInvalid,
                 "config_groups.group_0.weights\" must be an object"),
      Compressed("CompressedInFourBits",
                 {{"group_0", {{"weights", {{"type", "float"}, {"num_bits", 4}}}}}}, kUnsupported,
                 "config_groups.group_0.weights.num_bits\" is 4; supported is 8"),
      Compressed(
          "CompressedInGroups",
          {{"group_0", {{"weights", {{"type", "float"}, {"num_bits", 8}, {"strategy", "group"}}}}}},
          kUnsupported, "group_0.weights.strategy\" is \"group\""),
      Config("ModelOptInFourBits", "quantization_config",
             {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}}, kUnsupported,
             "\"quantization_config.quant_algo\" is \"NVFP4\"; supported is \"FP8\""),
      Config("QuantizationIsAList", "quantization_config", {1}, kInvalid,
             "\"quantization_config\" must be an object"),
      Config("PartialRotary", "partial_rotary_factor", 0.5, kUnsupported,
             "\"partial_rotary_factor\""),
      Config("PartialRotaryAmongRopesKeys", "rope_parameters", {{"partial_rotary_factor", 0.5}},
             kUnsupported, "\"rope_parameters.partial_rotary_factor\" would change the math"),
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
             "\"rope_scaling.short_factor\" must list 8 numbers, one for each pair"),
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

BrokenModel Sparse(std::string name, const char* key, Json value, absl::StatusCode code,
                   std::string message) {
  BrokenModel row = Config(std::move(name), key, std::move(value), code, std::move(message));
  row.model = kSparse;
  return row;
}

BrokenModel SparseTensors(std::string name, const std::function<void(Json&)>& edit,
                          absl::StatusCode code, std::string message) {
  BrokenModel row = Header(std::move(name), edit, code, std::move(message));
  row.model = kSparse;
  return row;
}

std::vector<BrokenModel> SparseRows() {
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
      {"FusedMatrixOfAnotherShape",
       [](auto& m) { m.EditConfig([](Json& config) { config["num_key_value_heads"] = 4; }); },
       kInvalid,
       "self_attn.qkv_proj.weight has shape [128, 64], but config.json makes it [192, 64]",
       {.architecture = "Phi3ForCausalLM"}},
      {"MixtralWithoutTheta",
       [](auto& m) { m.EditConfig([](Json& config) { config.erase("rope_theta"); }); },
       kInvalid,
       "\"rope_theta\" is missing",
       {.architecture = "MixtralForCausalLM"}},
  };
}

TEST_P(BrokenModelTest, IsRefused) { ExpectRefused(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Config, BrokenModelTest, testing::ValuesIn(ConfigRows()), kRowName);
INSTANTIATE_TEST_SUITE_P(Sparse, BrokenModelTest, testing::ValuesIn(SparseRows()), kRowName);

}  // namespace
}  // namespace baton::model_testing
