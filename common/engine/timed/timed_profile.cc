#include "common/engine/timed/timed_profile.h"

#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "common/chunking/stage_cost.h"
#include "common/json/json_section.h"
#include "common/json/parse_json.h"
#include "common/model/fingerprint.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr size_t kFileBytesMax = size_t{1} << 20;
constexpr int kMaxLayers = 4096;
constexpr int kMaxWidth = 1 << 20;
constexpr int kMaxContext = 1 << 27;
constexpr double kMaxDense = 1000;

void ReadType(JsonSection& section, const char* key, ElementType& value) {
  std::string name;
  section.Text(key, false, name);
  const std::optional<ElementType> type = ParseElementType(name);
  if (type.has_value()) {
    value = *type;
  } else {
    section.Fail(key, absl::StrCat("is \"", name, "\", expected float32 or bfloat16"));
  }
}

absl::Status ReadModel(JsonSection model, TimedProfile& profile) {
  model.Only({"layers", "dense_layers", "hidden_size", "kv_heads", "head_dim", "planes",
              "context_tokens", "dtype", "kv_dtype"});
  model.Int("layers", 1, kMaxLayers, std::nullopt, profile.layers);
  model.Int("dense_layers", 0, std::max(profile.layers, 0), 0, profile.dense_layers);
  model.Int("hidden_size", 8, kMaxWidth, std::nullopt, profile.hidden_size);
  model.Int("kv_heads", 1, kMaxWidth, std::nullopt, profile.kv_heads);
  model.Int("head_dim", 8, kMaxWidth, std::nullopt, profile.head_dim);
  model.Int("planes", 1, 2, 2, profile.planes);
  model.Int("context_tokens", 2, kMaxContext, std::nullopt, profile.context_tokens);
  ReadType(model, "dtype", profile.dtype);
  ReadType(model, "kv_dtype", profile.kv_dtype);
  return model.status();
}

absl::Status ReadCosts(JsonSection prefill, JsonSection decode, TimedProfile& profile) {
  prefill.Only({"stage_overhead_us", "overhead_us", "prefix_us", "token_us", "attention_us",
                "floor_tokens", "dense_layer"});
  prefill.Number("stage_overhead_us", 0, kMaxCostMicros, 0, profile.stage_overhead_us);
  prefill.Int("floor_tokens", 0, kMaxContext, 0, profile.prefill.floor_tokens);
  prefill.Number("dense_layer", 0, kMaxDense, 1, profile.dense_prefill);
  ReadStageCost(prefill, 0, profile.prefill);
  BATON_RETURN_IF_ERROR(prefill.status());
  decode.Only({"overhead_us", "sequence_us", "context_us", "dense_layer"});
  decode.Number("overhead_us", 0, kMaxCostMicros, std::nullopt, profile.decode.overhead_us);
  decode.Number("sequence_us", 0, kMaxCostMicros, 0, profile.decode.sequence_us);
  decode.Number("context_us", 0, kMaxCostMicros, 0, profile.decode.context_us);
  decode.Number("dense_layer", 0, kMaxDense, 1, profile.dense_decode);
  return decode.status();
}

absl::Status ReadNoise(JsonSection noise, TimedProfile& profile) {
  noise.Only({"relative", "seed"});
  noise.Number("relative", 0, 1, std::nullopt, profile.noise_relative);
  int seed = 1;
  noise.Int("seed", 0, INT32_MAX, 1, seed);
  profile.noise_seed = static_cast<uint64_t>(seed);
  return noise.status();
}

// How much each layer does, where a dense one does `dense` times another's.
std::vector<double> WorkByLayer(const TimedProfile& profile, double dense) {
  std::vector<double> work(static_cast<size_t>(profile.layers), 1.0);
  std::fill_n(work.begin(), profile.dense_layers, dense);
  return work;
}

// The part of all layers' work that these do; 0 if there is none.
double WorkShare(const std::vector<double>& work, LayerRange some) {
  const double whole = WorkOf(work, {0, static_cast<int>(work.size())});
  return whole == 0 ? 0 : WorkOf(work, some) / whole;
}

}  // namespace

StageCost TimedProfile::OfLayers(LayerRange some) const {
  return prefill.OfLayers(static_cast<double>(some.size()) / layers, WorkShare(LayerWork(), some));
}

StageCost TimedProfile::OfStage(LayerRange stage_layers) const {
  StageCost cost = OfLayers(stage_layers);
  cost.overhead_us += stage_overhead_us;
  return cost;
}

std::vector<double> TimedProfile::LayerWork() const { return WorkByLayer(*this, dense_prefill); }

ModelConfig TimedProfile::Apply(ModelConfig config) const {
  config.num_hidden_layers = layers;
  config.hidden_size = hidden_size;
  config.num_key_value_heads = kv_heads;
  config.head_dim = head_dim;
  config.kv_planes = planes;
  config.latent = {};
  config.max_position_embeddings = context_tokens;
  config.torch_dtype = ElementTypeName(dtype);
  return config;
}

ModelFingerprint TimedProfile::Fingerprint(const ModelConfig& config,
                                           LayerRange stage_layers) const {
  ModelFingerprint fingerprint;
  fingerprint.config_hash = ConfigFingerprint(config);
  for (int layer = stage_layers.begin; layer < stage_layers.end; ++layer) {
    fingerprint.layer_hashes[layer] = Mix64(text_hash ^ static_cast<uint64_t>(layer));
  }
  if (stage_layers.begin == 0) fingerprint.embedding_hash = Mix64(text_hash ^ UINT64_MAX) | 1;
  if (stage_layers.end == layers) fingerprint.head_hash = Mix64(text_hash ^ INT64_MAX) | 1;
  return fingerprint;
}

absl::StatusOr<TimedProfile> ParseTimedProfile(std::string_view text, const std::string& file) {
  BATON_ASSIGN_OR_RETURN(const Json document, ParseJson(text, file));  // The error names the line.
  TimedProfile profile;
  const JsonText where{text, file};
  JsonSection whole(where, document, "");
  whole.Only({"name", "source", "model", "prefill", "decode", "noise"});
  whole.Text("name", false, profile.name);
  std::string source;  // For readers.
  whole.Text("source", true, source);
  BATON_RETURN_IF_ERROR(whole.status());
  BATON_RETURN_IF_ERROR(ReadModel(JsonSection(where, document, "model"), profile));
  BATON_RETURN_IF_ERROR(ReadCosts(JsonSection(where, document, "prefill"),
                                  JsonSection(where, document, "decode"), profile));
  if (document.contains("noise")) {
    BATON_RETURN_IF_ERROR(ReadNoise(JsonSection(where, document, "noise"), profile));
  }
  profile.text_hash = XXH3_64bits(text.data(), text.size());
  return profile;
}

absl::StatusOr<TimedProfile> LoadTimedProfile(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kFileBytesMax));
  return ParseTimedProfile(text, path);
}

absl::StatusOr<ModelConfig> LoadPlayedModelConfig(const std::string& model_path,
                                                  int64_t context_tokens,
                                                  const std::string& timed_profile) {
  BATON_ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(model_path, context_tokens));
  if (timed_profile.empty()) return config;
  BATON_ASSIGN_OR_RETURN(const TimedProfile profile, LoadTimedProfile(timed_profile));
  return profile.Apply(std::move(config));
}

TimedSteps::TimedSteps(const TimedProfile& profile, LayerRange layers)
    : share_(static_cast<double>(layers.size()) / profile.layers),
      work_(WorkShare(WorkByLayer(profile, profile.dense_decode), layers)),
      prefill_(profile.OfStage(layers)),
      decode_(profile.decode),
      noise_relative_(profile.noise_relative),
      random_(profile.noise_seed * 1000 + static_cast<uint64_t>(layers.begin)) {}

double TimedSteps::Micros(const TimedStep& step) const {
  if (!step.decodes) return prefill_.Micros(step.work);
  return work_ * (decode_.overhead_us + decode_.sequence_us * step.sequences) +
         share_ * decode_.context_us * static_cast<double>(step.work.prefix_tokens);
}

int64_t TimedSteps::NextMicros(const TimedStep& step) {
  return static_cast<int64_t>(Micros(step) * Noise());
}

// The sum of twelve uniform numbers approximates a normal one, and is the same on every machine.
double TimedSteps::Noise() {
  if (noise_relative_ == 0) return 1;
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += random_.Uniform();
  return std::max(0.0, 1 + noise_relative_ * sum);
}

}  // namespace baton
