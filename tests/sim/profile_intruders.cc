// Files of costs that people have edited: what is out of its bounds is refused, with the field's
// name, and what is within them is read as it stands.
#include <cstddef>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/sim/chain_profile.h"

namespace baton::sim {
namespace {

using Json = nlohmann::json;

constexpr int kEditsOfALife = 4;
constexpr int64_t kMostPlans = int64_t{1} << 53;
constexpr int64_t kMostTokens = int64_t{1} << 27;
constexpr double kMostCost = 1e12;
constexpr double kMostError = 0.3;

struct Edit {
  const char* section;  // "": the whole file; "stages": one of them.
  const char* field;
  std::optional<Json> value;  // nullopt: the field is deleted.
  bool taken;
};

const std::vector<Edit>& Edits() {
  static const auto& edits = *new std::vector<Edit>{
      {"", "format", 0, false},
      {"", "format", 2, false},
      {"", "format", std::nullopt, false},
      {"", "measured", 1, false},
      {"", "stages", Json::array(), false},
      {"", "stages", Json::object(), false},
      {"", "stages", std::nullopt, false},
      {"measured_on", "model", std::nullopt, false},
      {"measured_on", "model", 7, false},
      {"measured_on", "config", std::nullopt, false},
      {"measured_on", "config", "0123456789abcde", false},
      {"measured_on", "config", "0123456789abcdef0", false},
      {"measured_on", "config", "0123456789abcdeg", false},
      {"measured_on", "config", "0123456789abcdef", true},
      {"measured_on", "executor", std::nullopt, false},
      {"measured_on", "executor", "torch", true},
      {"measured_on", "device", std::nullopt, false},
      {"measured_on", "device", "cuda", true},
      {"measured_on", "dtype", std::nullopt, false},
      {"measured_on", "dtype", "float16", true},
      {"measured_on", "kv_dtype", std::nullopt, false},
      {"measured_on", "kv_dtype", "float16", true},
      {"measured_on", "threads", std::nullopt, true},
      {"measured_on", "threads", 0, false},
      {"measured_on", "threads", 1, true},
      {"measured_on", "threads", 1024, true},
      {"measured_on", "threads", 1025, false},
      {"measured_on", "max_chunk_tokens", std::nullopt, true},
      {"measured_on", "max_chunk_tokens", -1, false},
      {"measured_on", "max_chunk_tokens", 0, true},
      {"measured_on", "max_chunk_tokens", kMostTokens, true},
      {"measured_on", "max_chunk_tokens", kMostTokens + 1, false},
      {"measured_on", "host", std::nullopt, true},
      {"measured_on", "host", 1, false},
      {"measured_on", "cpu", std::nullopt, true},
      {"measured_on", "cores", 4, false},
      {"stages", "layers", std::nullopt, false},
      {"stages", "layers", 0, false},
      {"stages", "layers", 1, true},
      {"stages", "layers", 65536, true},
      {"stages", "layers", 65537, false},
      {"stages", "layers", 1.5, false},
      {"stages", "overhead_us", std::nullopt, false},
      {"stages", "overhead_us", -1, false},
      {"stages", "overhead_us", 0, true},
      {"stages", "overhead_us", kMostCost, true},
      {"stages", "overhead_us", 1.01 * kMostCost, false},
      {"stages", "prefix_us", std::nullopt, false},
      {"stages", "prefix_us", -1, false},
      {"stages", "prefix_us", 0, true},
      {"stages", "prefix_us", kMostCost, true},
      {"stages", "prefix_us", 1.01 * kMostCost, false},
      {"stages", "token_us", std::nullopt, false},
      {"stages", "token_us", -1, false},
      {"stages", "token_us", 0, true},  // Attention costs something.
      {"stages", "token_us", kMostCost, true},
      {"stages", "token_us", 1.01 * kMostCost, false},
      {"stages", "attention_us", std::nullopt, false},
      {"stages", "attention_us", -1, false},
      {"stages", "attention_us", 0, true},
      {"stages", "attention_us", kMostCost, true},
      {"stages", "attention_us", 1.01 * kMostCost, false},
      {"stages", "attention_us", "much", false},
      {"stages", "error", std::nullopt, false},
      {"stages", "error", -0.1, false},
      {"stages", "error", 0, true},
      {"stages", "error", kMostError, true},
      {"stages", "error", 1.01 * kMostError, false},
      {"stages", "plans", std::nullopt, false},
      {"stages", "plans", -1, false},
      {"stages", "plans", 0, true},
      {"stages", "plans", kMostPlans, true},
      {"stages", "plans", kMostPlans + 1, false},
      {"stages", "plan", 1, false},
  };
  return edits;
}

template <typename Value>
bool Same(const Json& of, const char* field, const Value& value, const Json& otherwise) {
  const auto found = of.find(field);
  return (found == of.end() ? otherwise : *found) == Json(value);
}

}  // namespace

std::string DifferenceFromText(const ChunkProfile& profile, const std::string& text) {
  const Json json = Json::parse(text);
  const MeasuredOn& on = profile.on;
  const Json& said = json["measured_on"];
  const std::string hash = absl::StrCat(absl::Hex(on.config_hash, absl::kZeroPad16));
  if (!Same(said, "model", on.model, "")) return "model";
  if (!Same(said, "config", hash, "")) return "config";
  if (!Same(said, "executor", on.executor, "")) return "executor";
  if (!Same(said, "device", on.device, "")) return "device";
  if (!Same(said, "dtype", on.dtype, "")) return "dtype";
  if (!Same(said, "kv_dtype", on.kv_dtype, "")) return "kv_dtype";
  if (!Same(said, "cpu_numerics", on.cpu_numerics, "")) return "cpu_numerics";
  if (!Same(said, "threads", on.threads, 1)) return "threads";
  if (!Same(said, "max_chunk_tokens", on.max_chunk_tokens, 0)) return "max_chunk_tokens";
  if (!Same(said, "host", on.host, "")) return "host";
  if (!Same(said, "cpu", on.cpu, "")) return "cpu";
  const Json& stages = json["stages"];
  if (stages.size() != profile.stages.size() || json["format"] != 1) return "stages";
  for (size_t i = 0; i < stages.size(); ++i) {
    const StageProfile& stage = profile.stages[i];
    const bool same = Same(stages[i], "layers", stage.layers, 0) &&
                      Same(stages[i], "overhead_us", stage.cost.overhead_us, 0) &&
                      Same(stages[i], "prefix_us", stage.cost.prefix_us, 0) &&
                      Same(stages[i], "token_us", stage.cost.token_us, 0) &&
                      Same(stages[i], "attention_us", stage.cost.attention_us, 0) &&
                      Same(stages[i], "error", stage.error, 0) &&
                      Same(stages[i], "plans", stage.plans, 0);
    if (!same || stage.cost.floor_tokens != 0) return absl::StrCat("stage ", i);
  }
  return "";
}

void ChainProfile::LetPeopleEdit(const ChunkProfile& good) {
  const Json whole = Json::parse(ChunkProfileText(good));
  const auto expect = [&](const Json& edited, bool taken, const std::string& named) {
    const std::string text = edited.dump(1);
    const absl::StatusOr<ChunkProfile> read = ParseChunkProfile(text, "edited");
    if (read.ok() != taken || (read.ok() && !DifferenceFromText(*read, text).empty())) {
      return Complain(absl::StrCat(taken ? "is not taken as it stands" : "is taken", ", with ",
                                   named, ": ", read.status().ToString(), "\n", text));
    }
    if (read.ok()) return;
    const std::string words(read.status().message());
    if (absl::IsInvalidArgument(read.status()) && absl::StartsWith(words, "edited: line ") &&
        absl::StrContains(words, absl::StrCat("\"", named, "\""))) {
      return;
    }
    Complain(absl::StrCat("is refused, but not for ", named, ": ", read.status().ToString()));
  };
  expect(whole, true, "nothing");
  for (int i = 0; i < kEditsOfALife; ++i) {
    const Edit& edit = Edits()[world_.random().Below(Edits().size())];
    const std::string section = edit.section;
    const size_t stage = world_.random().Below(good.stages.size());
    Json edited = whole;
    Json& part = section.empty()       ? edited
                 : section == "stages" ? edited[section][stage]
                                       : edited[section];
    if (edit.value.has_value()) {
      part[edit.field] = *edit.value;
    } else {
      part.erase(edit.field);
    }
    const std::string within = section == "stages" ? absl::StrCat("stages[", stage, "].")
                               : section.empty()   ? ""
                                                   : section + ".";
    expect(edited, edit.taken, within + edit.field);
  }
  // A profile with the most stages allowed, with one more, or with a stage whose tokens cost
  // nothing.
  const int64_t kind = world_.random().Between(0, 2);
  Json edited = whole;
  if (kind < 2) {
    while (edited["stages"].size() < 64 + static_cast<size_t>(kind)) {
      edited["stages"].push_back(edited["stages"][0]);
    }
    return expect(edited, kind == 0, "stages");
  }
  edited["stages"][0]["token_us"] = edited["stages"][0]["attention_us"] = 0;
  expect(edited, false, "stages[0].token_us");
}

// What makes costs another's, by the name of its option; and what does not.
void ChainProfile::CheckDifferences(const MeasuredOn& here) {
  struct Field {
    std::string MeasuredOn::*field;
    const char* option;  // nullptr: where it differs, costs are off by a factor, which is learned.
  };
  constexpr Field kFields[] = {{&MeasuredOn::executor, "--executor"},
                               {&MeasuredOn::device, "--device"},
                               {&MeasuredOn::dtype, "--dtype"},
                               {&MeasuredOn::kv_dtype, "--kv-cache-dtype"},
                               {&MeasuredOn::cpu_numerics, "--cpu-numerics"},
                               {&MeasuredOn::host, nullptr},
                               {&MeasuredOn::cpu, nullptr},
                               {&MeasuredOn::model, nullptr}};
  if (!here.DifferenceTo(here).empty()) Complain("differs from itself");
  for (const Field& field : kFields) {
    MeasuredOn there = here;
    there.*field.field = "another";
    const std::string difference = there.DifferenceTo(here);
    const std::string right =
        field.option == nullptr
            ? ""
            : absl::StrCat(field.option, " is another there and ", here.*field.field, " here");
    if (difference != right) Complain(absl::StrCat("says '", difference, "', not '", right, "'"));
    MeasuredOn unknowing = here;
    (unknowing.*field.field).clear();
    if (!there.DifferenceTo(unknowing).empty()) Complain("is compared with what is not known");
  }
  MeasuredOn there = here;
  ++there.config_hash;
  const std::string sizes = there.DifferenceTo(here);
  if (sizes != "the model toy has other sizes there") Complain(sizes);
  there.model = "giant";
  const std::string names = there.DifferenceTo(here);
  if (names != "the model is giant there and toy here") Complain(names);
}

}  // namespace baton::sim
