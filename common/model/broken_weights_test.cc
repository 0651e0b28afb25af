// Every way in which a model's files of weights can be broken or hostile.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/model/testing/broken_model.h"

namespace baton::model_testing {
namespace {

constexpr char kQ[] = "model.layers.1.self_attn.q_proj.weight";
constexpr char kIndex[] = "model.safetensors.index.json";

// A model of two shards.
BrokenModel Sharded(std::string name, std::function<void(const ModelDirectory&)> break_it,
                    absl::StatusCode code, std::string message) {
  return {std::move(name),
          std::move(break_it),
          code,
          std::move(message),
          {.num_hidden_layers = 2, .shards = 2}};
}

// FP8 with scales; the shapes of 200 columns have two blocks.
BrokenModel Fp8(std::string name, const std::function<void(Json&)>& edit, absl::StatusCode code,
                std::string message) {
  BrokenModel row = Header(std::move(name), edit, code, std::move(message));
  row.model.fp8 = true;
  row.model.intermediate_size = 200;
  return row;
}

BrokenModel RowScaled(std::string name, const std::function<void(Json&)>& edit,
                      absl::StatusCode code, std::string message) {
  BrokenModel row = Fp8(std::move(name), edit, code, std::move(message));
  row.model.fp8_scales = RandomModelOptions::Scales::kRows;
  return row;
}

std::vector<BrokenModel> Fp8Rows() {
  constexpr char kDown[] = "model.layers.1.mlp.down_proj.weight";
  constexpr char kScale[] = "model.layers.1.mlp.down_proj.weight_scale_inv";
  BrokenModel told = Fp8(
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
      RowScaled(
          "RowScalesOfAnotherShape",
          [=](Json& h) {
            h["model.layers.1.mlp.down_proj.weight_scale"]["shape"] = {2, 32};
          },
          kInvalid,
          "weight_scale has shape [2, 32], expected one scale, [64, 1] for the rows, or [1, 2]"),
      RowScaled(
          "NoRowScales", [=](Json& h) { h.erase("model.layers.1.mlp.down_proj.weight_scale"); },
          kMissing, "model.layers.1.mlp.down_proj.weight_scale"),
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

std::vector<BrokenModel> WeightRows() {
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

TEST_P(BrokenModelTest, IsRefused) { ExpectRefused(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Fp8, BrokenModelTest, testing::ValuesIn(Fp8Rows()), kRowName);
INSTANTIATE_TEST_SUITE_P(Weights, BrokenModelTest, testing::ValuesIn(WeightRows()), kRowName);

}  // namespace
}  // namespace baton::model_testing
