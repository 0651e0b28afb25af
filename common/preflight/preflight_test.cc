// Every way in which options, a model directory and a machine don't make a cluster: refused or
// warned of before anything starts, naming the option and what would do. One row per way.
#include "common/preflight/preflight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "common/preflight/preflight_fixture.h"

namespace baton {
namespace {

using model_testing::Json;
using model_testing::ModelDirectory;
using model_testing::WriteFile;
using preflight_testing::Check;
using preflight_testing::Make;
using ::testing::HasSubstr;
using v1::OptionSpec;

struct Row {
  std::string name;
  std::function<void(const ModelDirectory&)> break_it;
  bool refused;
  std::string option;
  std::string message;  // A fragment.
  RandomModelOptions model = {};
  std::vector<std::string> args = {};
};

std::ostream& operator<<(std::ostream& out, const Row& row) { return out << row.name; }

constexpr auto kNothing = [](const ModelDirectory&) {};

Row Unused(std::string name, const std::string& tensor, bool refused, const std::string& message,
           RandomModelOptions model = {}) {
  return {std::move(name),
          [tensor](const ModelDirectory& d) { d.AddTensor(tensor); },
          refused,
          "model_path",
          "unused tensor " + tensor + ": " + message,
          std::move(model)};
}

std::vector<Row> DirectoryRows() {
  return {
      {"NoDirectory", [](auto& d) { std::filesystem::remove_all(d.path); }, true, "model_path",
       "there is no directory '"},
      {"NoConfig", [](auto& d) { d.Remove("config.json"); }, true, "model_path",
       "config.json: no such file"},
      {"HeadDim34", [](auto& d) { d.EditConfig([](Json& c) { c["head_dim"] = 34; }); }, true,
       "model_path", "\"head_dim\" is 34; supported are multiples of 16 up to 576"},
      {"NoTokenizer", [](auto& d) { d.Remove("tokenizer.json"); }, true, "tokenizer_path",
       "tokenizer.json: can't be opened; the router needs it"},
      {"BrokenTokenizer", [](auto& d) { WriteFile(d.File("tokenizer.json"), "{"); }, true,
       "tokenizer_path", "tokenizer.json"},
      {"NoShard",
       [](auto& d) { d.Remove("model-00002-of-00003.safetensors"); },
       true,
       "model_path",
       "model-00002-of-00003.safetensors: No such file",
       {.shards = 3}},
      {"OnlyBin",
       [](auto& d) {
         d.Remove("model.safetensors");
         WriteFile(d.File("pytorch_model.bin"), "PK");
       },
       true, "model_path", "it holds pickled weights (.bin, .pth)"},
      {"OnlyAdapter",
       [](auto& d) {
         d.Remove("config.json");
         WriteFile(d.File("adapter_model.safetensors"), "");
       },
       true, "model_path", "it holds an adapter"},
      {"OnlyGguf",
       [](auto& d) {
         d.Remove("model.safetensors");
         WriteFile(d.File("model.gguf"), "GGUF");
       },
       true, "model_path", "it holds GGUF"},
      {"TruncatedWeights",
       [](auto& d) {
         const std::string file = d.File("model.safetensors");
         std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
       },
       true, "model_path", "outside the file's"},
      {"FewerLayersThanConfigured",
       [](auto& d) { d.EditConfig([](Json& c) { c["num_hidden_layers"] = 5; }); }, true,
       "model_path", "and 7 more tensors"},
      {"MixedTypes", [](auto& d) { d.EditConfig([](Json& c) { c["torch_dtype"] = "bfloat16"; }); },
       true, "model_path",
       "tensor model.embed_tokens.weight is stored as F32, while the checkpoint is bfloat16"},
      {"AnotherVocabulary", [](auto& d) { d.EditConfig([](Json& c) { c["vocab_size"] = 299; }); },
       true, "model_path", "but config.json makes it [299, 64]"},
      {"AdapterBesideTheWeights", [](auto& d) { WriteFile(d.File("adapter_config.json"), "{}"); },
       true, "model_path", "an adapter lies beside the weights"},
      {"NothingEnds", [](auto& d) { WriteFile(d.File("generation_config.json"), "{}"); }, false,
       "model_path", "names an \"eos_token_id\""},
      {"UnknownChatFormat",
       [](auto& d) {
         d.EditJson("tokenizer.json", [](Json& json) {
           for (Json& token : json["added_tokens"]) {
             token["content"] = "<other" + token["id"].dump() + ">";
           }
         });
         WriteFile(d.File("tokenizer_config.json"), "{}");
       },
       false, "chat_template", "belong to no chat format"},
      {"BrokenChatTemplate",
       [](auto& d) { WriteFile(d.File("chat_template.jinja"), "{{ bos_token }}\n{% if x %}"); },
       true, "chat_template", "chat_template.jinja: chat template: line 2: expected"},
      {"UnknownToolCallParser",
       kNothing,
       true,
       "tool_call_parser",
       "must be one of auto, none, hermes",
       {},
       {"--tool-call-parser", "some"}},
      {"UnknownReasoningParser",
       kNothing,
       true,
       "reasoning_parser",
       "must be one of auto, none, qwen3",
       {},
       {"--reasoning-parser", "some"}},
  };
}

std::vector<Row> TensorRows() {
  const RandomModelOptions llama = {.architecture = "LlamaForCausalLM"};
  return {
      Unused("Bias", "model.layers.1.self_attn.q_proj.bias", true,
             "LlamaForCausalLM with this config.json has no such bias", llama),
      Unused("HeadBias", "lm_head.bias", true, "LlamaForCausalLM with this config.json", llama),
      Unused("Norm", "model.layers.1.self_attn.q_norm.weight", true,
             "LlamaForCausalLM with this config.json has no such norm", llama),
      Unused("Part", "model.layers.1.mlp.extra_proj.weight", true, "LlamaForCausalLM has no",
             llama),
      Unused("ExtraLayer", "model.layers.4.input_layernorm.weight", true,
             "config.json says \"num_hidden_layers\" 4"),
      {"MtpLayer",
       [](auto& d) {
         d.AddTensor("model.layers.4.mlp.experts.0.up_proj.weight_scale_inv");
         d.EditConfig([](Json& c) { c["num_nextn_predict_layers"] = 1; });
       },
       false,
       "model_path",
       "unused tensor model.layers.4.mlp.experts.0.up_proj.weight_scale_inv: layers of "
       "multi-token prediction are not run",
       {.architecture = "DeepseekV3ForCausalLM"}},
      {"LayerBehindTheMtpLayer",
       [](auto& d) {
         d.AddTensor("model.layers.5.enorm.weight");
         d.EditConfig([](Json& c) { c["num_nextn_predict_layers"] = 1; });
       },
       true,
       "model_path",
       "config.json says \"num_hidden_layers\" 4",
       {.architecture = "DeepseekV3ForCausalLM"}},
      {"LatentRowTooWide",
       [](auto& d) { d.EditConfig([](Json& c) { c["kv_lora_rank"] = 768; }); },
       true,
       "model_path",
       "\"kv_lora_rank\" is 768 and \"qk_rope_head_dim\" is 16; supported are multiples of 16",
       {.architecture = "DeepseekV3ForCausalLM"}},
      Unused("Experts", "model.layers.0.mlp.experts.0.up_proj.weight", true,
             "Qwen3ForCausalLM has no experts"),
      Unused("ExpertTooMany", "model.layers.0.mlp.experts.8.up_proj.weight", true,
             "Qwen3MoeForCausalLM with this config.json has no such expert",
             {.architecture = "Qwen3MoeForCausalLM"}),
      Unused("SharedExpert", "model.layers.0.block_sparse_moe.shared_expert.weight", true,
             "MixtralForCausalLM with this config.json has no such expert",
             {.architecture = "MixtralForCausalLM"}),
      Unused("Adapter", "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", true,
             "adapters are not applied"),
      Unused("Quantized", "model.layers.0.mlp.up_proj.qweight", true, "the weights are quantised"),
      Unused("ActivationScale", "model.layers.0.mlp.up_proj.input_scale", false,
             "activations are not rounded to FP8", {.fp8 = true}),
      Unused("ActivationScaleWithoutFp8", "model.layers.0.mlp.up_proj.input_scale", true,
             "the weights are quantised"),
      Unused("KvScale", "model.layers.0.self_attn.k_scale", false,
             "scales of a quantised KV cache"),
      Unused("TiedHead", "lm_head.weight", false, "config.json ties the head to the embeddings",
             {.tie_word_embeddings = true}),
      Unused("VisionTower", "vision_tower.patch.weight", false, "no part of the language model"),
      Unused("VisionTowerAround", "vision_tower.encoder.layers.0.mlp.fc1.bias", false,
             "no part of the language model", {.architecture = "Gemma3ForConditionalGeneration"}),
      Unused("NormInside", "language_model.model.layers.0.mlp.up_norm.weight", true,
             "Gemma3ForConditionalGeneration with this config.json has no such norm",
             {.architecture = "Gemma3ForConditionalGeneration"}),
      Unused("TiedHeadInside", "language_model.lm_head.weight", false,
             "config.json ties the head to the embeddings",
             {.architecture = "Gemma3ForConditionalGeneration", .tie_word_embeddings = true}),
      Unused("NestedTower", "model.visual.patch.weight", false, "no part of the language model"),
  };
}

std::vector<Row> OptionRows() {
  return {
      {"Fp8ThatLibtorchWouldRound",
       kNothing,
       true,
       "dtype",
       "got auto, by which --executor torch would round the model's FP8 weights",
       {.dtype = DType::kBF16, .fp8 = true},
       {"--executor=torch"}},
      {"ContextPastTheModel",
       kNothing,
       true,
       "context_length",
       "got 32768; the model's \"max_position_embeddings\" is 16384",
       {},
       {"--context-length=32768"}},
      {"ContextOfOne", kNothing, true, "context_length", "got 1;", {}, {"--context-length=1"}},
      {"MoreStagesThanLayers",
       kNothing,
       true,
       "pp_size",
       "got 5 stages for 4 layers",
       {},
       {"--pp-size=5"}},
      {"PartitionOfAnotherModel",
       kNothing,
       true,
       "pp_layer_partition",
       "sums to 5",
       {},
       {"--pp-size=2", "--pp-layer-partition=2,3"}},
      {"MoreStagesOfADecodeServiceThanLayers",
       kNothing,
       true,
       "decode_pp_size",
       "got 5 stages for 4 layers",
       {},
       {"--decode-pp-size=5"}},
      {"PartitionOfADecodeServiceOfAnotherModel",
       kNothing,
       true,
       "decode_pp_layer_partition",
       "sums to 5",
       {},
       {"--decode-pp-size=2", "--decode-pp-layer-partition=2,3"}},
      {"RanksThatDoNotDivideTheHeads",
       kNothing,
       true,
       "tp_size",
       "is 3, which does not divide the model's 4 attention heads",
       {},
       {"--tp-size=3"}},
      {"RanksThatDoNotDivideTheHeadsOfADecodeService",
       kNothing,
       true,
       "decode_tp_size",
       "is 3, which does not divide the model's 4 attention heads",
       {},
       {"--decode-tp-size=3"}},
      {"RanksThatDoNotDivideTheActivations",
       kNothing,
       true,
       "tp_size",
       "columns of activations (hidden_size)",
       {.hidden_size = 66},
       {"--tp-size=4"}},
      {"TooManyThreads",
       kNothing,
       true,
       "threads",
       "between 1 and 256, is 300",
       {},
       {"--threads=300"}},
  };
}

class PreflightTest : public testing::TestWithParam<Row> {};

TEST_P(PreflightTest, FindsIt) {
  const Row& row = GetParam();
  const ModelDirectory model = Make(row.name, row.model);
  const std::vector<std::string> whole = {"--model-path=" + model.path};
  const PreflightReport before = Check(config::Command::kUp, whole);
  ASSERT_TRUE(before.findings.empty()) << FindingText(before.findings[0]);

  row.break_it(model);
  std::vector<std::string> args = whole;
  args.insert(args.end(), row.args.begin(), row.args.end());
  const PreflightReport report = Check(config::Command::kUp, args);
  bool found = false;
  for (const Finding& finding : report.findings) {
    const bool same = finding.option == row.option && finding.refuses() == row.refused;
    found |= same && finding.message.find(row.message) != std::string::npos;
  }
  std::string all;
  for (const Finding& finding : report.findings) all += FindingText(finding) + "\n";
  EXPECT_TRUE(found) << all;
  EXPECT_EQ(report.status().ok(), !row.refused) << report.status();
  if (row.refused) {
    EXPECT_EQ(report.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(report.status().message()), HasSubstr(row.message));
  }
  // `validate` is the same question.
  EXPECT_EQ(Check(config::Command::kValidate, args).status(), report.status());
}

constexpr auto kRowName = [](const auto& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(ModelDirectory, PreflightTest, testing::ValuesIn(DirectoryRows()),
                         kRowName);
INSTANTIATE_TEST_SUITE_P(Tensors, PreflightTest, testing::ValuesIn(TensorRows()), kRowName);
INSTANTIATE_TEST_SUITE_P(Options, PreflightTest, testing::ValuesIn(OptionRows()), kRowName);

TEST(PreflightTest, ByProductsAreIgnored) {
  const ModelDirectory model = Make("by_products");
  model.AddTensor("model.layers.0.self_attn.rotary_emb.inv_freq");
  EXPECT_TRUE(Check(config::Command::kUp, {"--model-path=" + model.path}).findings.empty());
}

TEST(PreflightTest, HubNamesAreToldFromPaths) {
  const auto message = [](const std::string& path) {
    const PreflightReport report = Check(config::Command::kUp, {"--model-path=" + path});
    EXPECT_FALSE(report.status().ok());
    return std::string(report.status().message());
  };
  const std::string hub = message("Qwen/Qwen2.5-0.5B-Instruct");
  EXPECT_THAT(hub, HasSubstr("huggingface-cli download Qwen/Qwen2.5-0.5B-Instruct"));
  EXPECT_THAT(hub, HasSubstr("--model-path Qwen2.5-0.5B-Instruct"));
  EXPECT_THAT(hub, HasSubstr("(set by flag --model-path)"));
  for (const char* path : {"./models/x", "/a/b", "a/b/c", "model", "a/", "~/x"}) {
    EXPECT_THAT(message(path), testing::Not(HasSubstr("hub"))) << path;
  }
  const ModelDirectory model = Make("a_file");
  EXPECT_THAT(message(model.File("config.json")), HasSubstr("is a file"));
}

TEST(PreflightTest, AStageNeedsItsOwnShardsAloneAndNoTokenizer) {
  const ModelDirectory model = Make("stages", {.shards = 8});
  model.Remove("model-00008-of-00008.safetensors");
  model.Remove("tokenizer.json");
  const auto stage = [&](const char* rank) {
    return Check(config::Command::kWorker, {"--model-path=" + model.path, rank, "--pp-size=2",
                                            "--disaggregation-mode=prefill"});
  };
  EXPECT_TRUE(stage("--pp-rank=0").status().ok()) << stage("--pp-rank=0").status();
  EXPECT_FALSE(stage("--pp-rank=1").status().ok());
  EXPECT_FALSE(Check(config::Command::kUp, {"--model-path=" + model.path}).status().ok());
}

TEST(PreflightTest, ValidateWithAModeIsThatWorker) {
  const ModelDirectory model = Make("mode");
  const PreflightReport report =
      Check(config::Command::kValidate, {"--model-path=" + model.path, "--pp-size=2", "--pp-rank=1",
                                         "--disaggregation-mode=prefill"});
  EXPECT_EQ(report.role, OptionSpec::PREFILL);
  ASSERT_TRUE(report.memory.has_value());
  EXPECT_EQ(report.memory->processes.size(), 1u);
  EXPECT_EQ(report.memory->processes[0].layers, (LayerRange{2, 4}));
}

TEST(PreflightTest, SeveralProblemsComeInOneMessage) {
  const ModelDirectory model = Make("several");
  model.Remove("tokenizer.json");
  const PreflightReport report =
      Check(config::Command::kUp, {"--model-path=" + model.path, "--context-length=99999"});
  EXPECT_THAT(std::string(report.status().message()),
              testing::StartsWith("2 problems\n  - context_length: got 99999"));
}

}  // namespace
}  // namespace baton
