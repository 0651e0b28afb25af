#include "tests/sim/chain_profile.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace baton::sim {
namespace {

constexpr double kErrorOfCosts = 0.05;
constexpr double kOfAnotherModel = 0.15;  // Share of the files present from the start.
constexpr double kSame = 1e-9;
constexpr int64_t kPlansBefore = 100;
// Whose layers were measured three at a time.
constexpr int kLayersMeasured = 3;

MeasuredOn Here() {
  return {.model = "toy",
          .config_hash = 0xba70'0000'0000'0001,
          .executor = "native",
          .device = "cpu",
          .dtype = "bfloat16",
          .kv_dtype = "float32",
          .cpu_numerics = "auto",
          .threads = 2,
          .max_chunk_tokens = 512,
          .host = "host-\"0\"",
          .cpu = "a CPU"};
}

}  // namespace

ChainProfile::ChainProfile(World& world, const Topology& topology, int node, std::string self)
    : world_(world), topology_(topology), node_(node), self_(std::move(self)) {
  std::string& disk = world_.disk(node_);
  if (disk.empty() && topology_.known_costs > 0) {
    ChunkProfile told = Told();
    if (world_.random().Chance(kOfAnotherModel)) ++told.on.config_hash;
    disk = ChunkProfileText(told);
  }
  CheckDifferences(Here());
  LetPeopleEdit(Told());
  if (!disk.empty()) Read();
}

void ChainProfile::Complain(const std::string& what) {
  world_.Violate(absl::StrCat("profile of ", self_, ": ", what));
}

// What stages cost, as a run of other stages of this model has measured it.
ChunkProfile ChainProfile::Told() const {
  ChunkProfile told{Here(), {}};
  for (int stage = 0; stage < topology_.stages; ++stage) {
    const double factor = topology_.known_costs > 0 ? topology_.known_costs : 1;
    told.stages.push_back({kLayersMeasured * topology_.StageLayers(stage).size(),
                           topology_.CostOf(stage).Times(factor * kLayersMeasured), kErrorOfCosts,
                           kPlansBefore + stage});
  }
  return told;
}

void ChainProfile::Read() {
  const std::string& disk = world_.disk(node_);
  const absl::StatusOr<ChunkProfile> profile = ParseChunkProfile(disk, "profile");
  if (!profile.ok()) return Complain(absl::StrCat("refused: ", profile.status().message()));
  const std::string difference = DifferenceFromText(*profile, disk);
  if (!difference.empty()) return Complain(absl::StrCat("is read otherwise: ", difference));
  const bool of_this = profile->on.config_hash == Here().config_hash;
  if (profile->on.DifferenceTo(Here()).empty() != of_this) {
    return Complain("of another model, and heeded, or of this one, and not");
  }
  if (of_this) loaded_ = *profile;
}

std::vector<KnownCost> ChainProfile::Known(const std::vector<int>& stage_layers) const {
  std::vector<KnownCost> known;
  if (!loaded_.has_value()) return known;
  for (size_t stage = 0; stage < stage_layers.size(); ++stage) {
    const StageProfile& measured = loaded_->stages[stage];
    known.push_back({measured.OfLayers(stage_layers[stage]), measured.error});
  }
  return known;
}

void ChainProfile::Keep(const std::vector<prefill::LearnedCost>& learned) {
  ChunkProfile profile{Here(), {}};
  uint64_t plans = 0;
  for (size_t stage = 0; stage < learned.size(); ++stage) {
    const prefill::LearnedCost& of = learned[stage];
    const int layers = topology_.StageLayers(static_cast<int>(stage)).size();
    if (of.layers != layers) return Complain("what was learned is said to be of other layers");
    if (!of.cost.has_value()) return;
    plans += of.plans;
    const int64_t before = loaded_.has_value() ? loaded_->stages[stage].plans : 0;
    profile.stages.push_back(
        {of.layers, *of.cost, of.error, before + static_cast<int64_t>(of.plans)});
  }
  if (profile.stages.empty() || std::exchange(plans_kept_, plans) == plans) return;
  std::string text = ChunkProfileText(profile);
  const std::string difference = DifferenceFromText(profile, text);
  if (!difference.empty()) Complain(absl::StrCat("is written otherwise: ", difference));
  world_.disk(node_) = std::move(text);
}

}  // namespace baton::sim
