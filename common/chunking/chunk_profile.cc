#include "common/chunking/chunk_profile.h"

#include <cstddef>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/chunking/cost_fit.h"
#include "common/chunking/stage_cost.h"
#include "common/json/json_section.h"
#include "common/json/parse_json.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;
constexpr size_t kFileBytesMax = size_t{1} << 20;
constexpr int kMaxLayers = 65536;
constexpr int kMaxStages = 64;
constexpr int kMaxTokens = 1 << 27;
constexpr int kMaxThreads = 1024;
constexpr int64_t kMaxPlans = int64_t{1} << 53;  // Every reader of JSON represents it exactly.

void ReadHash(JsonSection& section, const char* key, uint64_t& value) {
  std::string text;
  section.Text(key, false, text);
  if (text.size() == 16 && absl::SimpleHexAtoi(text, &value)) return;
  section.Fail(key, absl::StrCat("is \"", text, "\", expected 16 hexadecimal digits"));
}

absl::Status ReadOrigin(JsonSection section, MeasuredOn& on) {
  section.Only({"model", "config", "executor", "device", "dtype", "kv_dtype", "cpu_numerics",
                "threads", "max_chunk_tokens", "host", "cpu"});
  section.Text("model", false, on.model);
  ReadHash(section, "config", on.config_hash);
  section.Text("executor", false, on.executor);
  section.Text("device", false, on.device);
  section.Text("dtype", false, on.dtype);
  section.Text("kv_dtype", false, on.kv_dtype);
  section.Text("cpu_numerics", true, on.cpu_numerics);
  section.Int("threads", 1, kMaxThreads, 1, on.threads);
  section.Int("max_chunk_tokens", 0, kMaxTokens, 0, on.max_chunk_tokens);
  section.Text("host", true, on.host);
  section.Text("cpu", true, on.cpu);
  return section.status();
}

absl::Status ReadStage(JsonSection section, StageProfile& stage) {
  section.Only(
      {"layers", "overhead_us", "prefix_us", "token_us", "attention_us", "error", "plans"});
  section.Int("layers", 1, kMaxLayers, std::nullopt, stage.layers);
  ReadStageCost(section, std::nullopt, stage.cost);
  section.Number("error", 0, CostFit::kLargestError, std::nullopt, stage.error);
  section.Int("plans", int64_t{0}, kMaxPlans, std::nullopt, stage.plans);
  return section.status();
}

std::string HashText(uint64_t hash) { return absl::StrCat(absl::Hex(hash, absl::kZeroPad16)); }

std::string Differing(const char* what, const std::string& theirs, const std::string& ours) {
  if (theirs == ours || ours.empty()) return "";
  return absl::StrCat(what, " is ", theirs, " there and ", ours, " here");
}

}  // namespace

std::string MeasuredOn::DifferenceTo(const MeasuredOn& other) const {
  if (config_hash != other.config_hash) {
    const std::string names = Differing("the model", model, other.model);
    return names.empty() ? absl::StrCat("the model ", model, " has other sizes there") : names;
  }
  for (const std::string& difference :
       {Differing("--executor", executor, other.executor),
        Differing("--device", device, other.device), Differing("--dtype", dtype, other.dtype),
        Differing("--kv-cache-dtype", kv_dtype, other.kv_dtype)}) {
    if (!difference.empty()) return difference;
  }
  if (cpu_numerics.empty()) return "";
  return Differing("--cpu-numerics", cpu_numerics, other.cpu_numerics);
}

StageCost StageProfile::OfLayers(int stage_layers) const {
  return cost.Times(static_cast<double>(stage_layers) / layers);
}

std::vector<StageCost> ChunkProfile::CostsOf(const std::vector<LayerRange>& split,
                                             const std::vector<double>& layer_work) const {
  std::vector<StageCost> costs;
  int begin = 0;
  for (size_t stage = 0; stage < split.size(); ++stage) {
    const StageProfile& measured = stages[stage];
    const LayerRange then = {begin, begin + measured.layers};
    begin = then.end;
    costs.push_back(
        measured.cost.OfLayers(static_cast<double>(split[stage].size()) / measured.layers,
                               WorkOf(layer_work, split[stage]) / WorkOf(layer_work, then)));
  }
  return costs;
}

absl::StatusOr<ChunkProfile> ParseChunkProfile(std::string_view text, const std::string& file) {
  BATON_ASSIGN_OR_RETURN(const nlohmann::json document, ParseJson(text, file));
  const JsonText where{text, file};
  JsonSection whole(where, document, "");
  int format = 0;
  // Checked first, since the other fields depend on it.
  whole.Int("format", kFormat, kFormat, std::nullopt, format);
  whole.Only({"format", "measured_on", "stages"});
  BATON_RETURN_IF_ERROR(whole.status());
  ChunkProfile profile;
  BATON_RETURN_IF_ERROR(ReadOrigin(JsonSection(where, document, "measured_on"), profile.on));
  const auto stages = document.find("stages");
  if (stages == document.end() || !stages->is_array() || stages->empty() ||
      stages->size() > kMaxStages) {
    whole.Fail("stages", absl::StrCat("has to be a list of 1 to ", kMaxStages, " stages"));
    return whole.status();
  }
  for (size_t i = 0; i < stages->size(); ++i) {
    BATON_RETURN_IF_ERROR(
        ReadStage(JsonSection(where, *stages, "stages", i), profile.stages.emplace_back()));
  }
  return profile;
}

std::string ChunkProfileText(const ChunkProfile& profile) {
  const MeasuredOn& on = profile.on;
  Json document;
  document["format"] = kFormat;
  document["measured_on"] = Json{{"model", on.model},
                                 {"config", HashText(on.config_hash)},
                                 {"executor", on.executor},
                                 {"device", on.device},
                                 {"dtype", on.dtype},
                                 {"kv_dtype", on.kv_dtype},
                                 {"cpu_numerics", on.cpu_numerics},
                                 {"threads", on.threads},
                                 {"max_chunk_tokens", on.max_chunk_tokens},
                                 {"host", on.host},
                                 {"cpu", on.cpu}};
  Json& stages = document["stages"] = Json::array();
  for (const StageProfile& stage : profile.stages) {
    stages.push_back(Json{{"layers", stage.layers},
                          {"overhead_us", stage.cost.overhead_us},
                          {"prefix_us", stage.cost.prefix_us},
                          {"token_us", stage.cost.token_us},
                          {"attention_us", stage.cost.attention_us},
                          {"error", stage.error},
                          {"plans", stage.plans}});
  }
  // A name that is not UTF-8 must not throw.
  return document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<ChunkProfile> LoadChunkProfile(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kFileBytesMax));
  return ParseChunkProfile(text, path);
}

}  // namespace baton
