// Registrations that no worker of ours makes: descriptions that contradict themselves, and workers
// that fit no worker. A router refuses each by its name, and nothing else changes.
#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/sim/router_process.h"

namespace baton::sim {
namespace {

using Info = router::WorkerInfo;

// After all that a worker has made: its own call is not what an intruder is refused for.
constexpr uint64_t kOfIntruderCalls = ~uint64_t{0};

struct Malformed {
  const char* field;  // That the refusal names; "": a protocol that the router does not speak.
  void (*spoil)(Info&);
};

// A stage of a chain, so that every field means something.
Info StageOf(const Info& like) {
  Info stage = like;
  stage.role = Role::kPrefill;
  stage.chain_id = "intruders";
  stage.decode_id.clear();
  stage.decodes = false;
  stage.pp_rank = 1;
  stage.pp_size = 3;
  stage.fingerprint.kv_layout.layers = 6;
  stage.layers = {2, 4};
  stage.tensor_rank = {};
  return stage;
}

// A decode service of one stage.
void AsDecode(Info& worker) {
  worker.role = Role::kDecode;
  worker.pp_rank = 0;
  worker.pp_size = 1;
}

constexpr Malformed kMalformed[] = {
    {"instance.instance_id", [](Info& w) { w.instance.id.clear(); }},
    {"instance.incarnation", [](Info& w) { w.instance.incarnation = 0; }},
    {"fingerprint.kv_layout.layers", [](Info& w) { w.fingerprint.kv_layout.layers = 0; }},
    {"fingerprint.kv_layout.layers", [](Info& w) { w.fingerprint.kv_layout.layers = 4097; }},
    {"fingerprint.kv_layout", [](Info& w) { w.fingerprint.kv_layout.kv_heads = 0; }},
    {"fingerprint.kv_layout", [](Info& w) { w.fingerprint.kv_layout.head_dim = 0; }},
    {"fingerprint.kv_layout", [](Info& w) { w.fingerprint.kv_layout.page_size = 0; }},
    {"fingerprint.kv_layout", [](Info& w) { w.fingerprint.kv_layout.bytes_per_element = 0; }},
    {"fingerprint.oldest_protocol_version",
     [](Info& w) { w.fingerprint.oldest_protocol_version = w.fingerprint.protocol_version + 1; }},
    {"",
     [](Info& w) {
       w.fingerprint.oldest_protocol_version = kProtocolVersion + 1;
       w.fingerprint.protocol_version = kProtocolVersion + 1;
     }},
    {"",
     [](Info& w) {
       w.fingerprint.oldest_protocol_version = kOldestProtocolVersion - 1;
       w.fingerprint.protocol_version = kOldestProtocolVersion - 1;
     }},
    {"chain_id", [](Info& w) { w.chain_id.clear(); }},
    {"pp_size", [](Info& w) { w.pp_size = 0; }},
    {"pp_size", [](Info& w) { w.pp_size = 65; }},
    {"pp_rank", [](Info& w) { w.pp_rank = -1; }},
    {"pp_rank", [](Info& w) { w.pp_rank = 3; }},
    {"layers", [](Info& w) { w.layers.begin = -1; }},
    {"layers", [](Info& w) { w.layers.end = w.layers.begin; }},
    {"layers", [](Info& w) { w.layers.end = 7; }},
    {"layers", [](Info& w) { w.pp_rank = 0; }},
    {"layers", [](Info& w) { w.pp_rank = 2; }},
    {"layers",
     [](Info& w) {
       AsDecode(w), w.layers = {0, 5};
     }},
    {"layers",
     [](Info& w) {
       AsDecode(w), w.layers = {1, 6};
     }},
    {"tensor_rank",
     [](Info& w) {
       w.tensor_rank = {0, 0};
     }},
    {"tensor_rank",
     [](Info& w) {
       w.tensor_rank = {2, 2};
     }},
    {"tensor_rank",
     [](Info& w) {
       w.tensor_rank = {-1, 2};
     }},
    {"tensor_rank",
     [](Info& w) {
       w.tensor_rank = {0, 65};
     }},
    {"tensor_rank",
     [](Info& w) {
       w.tensor_rank = {0, 3}, w.fingerprint.kv_layout.kv_heads = 4;
     }},
    {"decode_id",
     [](Info& w) {
       AsDecode(w), w.layers = {0, 6}, w.tensor_rank = {0, 2};
     }},
    {"decode_id", [](Info& w) { w.role = Role::kDecode; }},
    {"layers", [](Info& w) { w.role = Role::kDecode, w.decode_id = "intruders", w.pp_rank = 2; }},
    {"page_count", [](Info& w) { w.page_count = 0; }},
    {"max_running_requests", [](Info& w) { w.max_running_requests = 0; }},
    {"max_context_tokens", [](Info& w) { w.max_context_tokens = 0; }},
};

struct Misfit {
  const char* property;  // As the refusal calls it.
  void (*differ)(Info&);
};

constexpr Misfit kMisfits[] = {
    {"model config", [](Info& w) { ++w.fingerprint.config_hash; }},
    {"dtype", [](Info& w) { w.fingerprint.dtype = "float8"; }},
    {"page size", [](Info& w) { w.fingerprint.kv_layout.page_size *= 2; }},
    {"layer count", [](Info& w) { w.layers.end = ++w.fingerprint.kv_layout.layers; }},
    {"KV heads", [](Info& w) { ++w.fingerprint.kv_layout.kv_heads; }},
    {"head dimension", [](Info& w) { ++w.fingerprint.kv_layout.head_dim; }},
    {"KV planes", [](Info& w) { w.fingerprint.kv_layout.planes = 1; }},
    {"bytes per element", [](Info& w) { ++w.fingerprint.kv_layout.bytes_per_element; }},
    {"weights of layer 0", [](Info& w) { w.fingerprint.layer_hashes[0] += 1000; }},
    {"embedding", [](Info& w) { ++w.fingerprint.embedding_hash; }},
    {"output head", [](Info& w) { ++w.fingerprint.head_hash; }},
};

// Misfits of a chain's or a decode service's members, which are cut alike.
constexpr Misfit kMisfitsOfGrid[] = {
    {"tp_size", [](Info& w) { w.tensor_rank.size *= 2; }},
    {"row_parallel_chunks", [](Info& w) { w.agreed.row_parallel_chunks += 2; }},
    {"row_parallel_chunk_threshold", [](Info& w) { ++w.agreed.row_parallel_threshold; }},
    // For chains only.
    {"pp_size", [](Info& w) { ++w.pp_size; }},
    {"pp_send_slice", [](Info& w) { w.agreed.sends_slices = !w.agreed.sends_slices; }},
};
constexpr size_t kOfBoth = 3;

template <typename Table>
size_t Draw(World& world, const Table& table) {
  return static_cast<size_t>(world.random().Between(0, static_cast<int64_t>(std::size(table)) - 1));
}

std::string GridOf(const Info& worker) {
  return worker.role == Role::kPrefill ? absl::StrCat(" of chain ", worker.chain_id)
                                       : absl::StrCat(" of decode service ", worker.decode_id);
}

// Why a stage with other layers than its place's is refused: the first member that it does not fit.
// "": it fits all.
std::string WhyLayersDiffer(const Info& other, const std::vector<router::Worker>& here) {
  for (const router::Worker& member : here) {
    const Info& info = member.info;
    if (info.role != Role::kPrefill || info.chain_id != other.chain_id) continue;
    const int after = other.pp_rank - info.pp_rank;
    if (after == 0 && info.tensor_rank == other.tensor_rank) return "is taken";
    if (after == 0 && info.layers != other.layers) return "layers of rank";
    if (after == 1 && info.layers.end > other.layers.begin) return "overlap";
    if (after == 1 && info.layers.end < other.layers.begin) return "leave a gap";
    if (after == -1 && other.layers.end > info.layers.begin) return "overlap";
    if (after == -1 && other.layers.end < info.layers.begin) return "leave a gap";
  }
  return "";
}

}  // namespace

bool RouterProcess::HasPlaces() const {
  const auto workers = static_cast<int>(core_.membership().Workers().size());
  return workers < limits_.membership.max_workers;
}

void RouterProcess::ExpectMisfit(const Info& intruder, const std::string& words) {
  Handle(router::LeaseAsked{kOfIntruder, intruder, {}, kOfIntruderCalls});
  if (absl::IsFailedPrecondition(intruder_told_) &&
      absl::StrContains(intruder_told_.message(), words)) {
    return;
  }
  world_.Violate(absl::StrCat(intruder.instance.id, ", to be refused for '", words,
                              "', is answered with: ", intruder_told_.ToString()));
}

// One that would have a member's place, and is cut otherwise than its chain or decode service, has
// other layers, or just comes too late. Only where no worker dies or falls silent: whom such a one
// would have to give its place to is another question.
void RouterProcess::LetAnotherShapeAsk() {
  if (!topology_.only_routers_pause && !topology_.first_router_stands) return;
  const std::vector<router::Worker> here = core_.membership().Workers();
  std::vector<Info> members;
  for (const router::Worker& worker : here) {
    const bool of_grid = worker.info.role == Role::kPrefill || !worker.info.tensor_rank.alone();
    if (!worker.draining && of_grid) members.push_back(worker.info);
  }
  if (members.empty()) return;
  Info other = members[Draw(world_, members)];
  const bool chain = other.role == Role::kPrefill;
  other.instance = {"intruder in another's place", 1};
  switch (world_.random().Below(3)) {
    case 0:
      if (world_.random().Chance(0.5)) return LetATwinAsk(here);
      return ExpectMisfit(other, absl::StrCat(GridOf(other), " is taken"));
    case 1: {
      const size_t kind = Draw(world_, kMisfitsOfGrid);
      const Misfit& misfit = kMisfitsOfGrid[chain ? kind : kind % kOfBoth];
      misfit.differ(other);
      return ExpectMisfit(other, absl::StrCat(misfit.property, GridOf(other), " differs"));
    }
    default:
      break;
  }
  int& end = world_.random().Chance(0.5) ? other.layers.begin : other.layers.end;
  end += world_.random().Chance(0.5) ? 1 : -1;
  const int layers = other.fingerprint.kv_layout.layers;
  const bool ends_right = (other.pp_rank > 0 || other.layers.begin == 0) &&
                          (other.pp_rank < other.pp_size - 1 || other.layers.end == layers);
  if (!chain || !ends_right || other.layers.size() < 1 || other.layers.begin < 0 ||
      other.layers.end > layers) {
    return;
  }
  ExpectMisfit(other, WhyLayersDiffer(other, here));
}

// Another process of a member's name, which lives: its description is a member's, and its life
// another one's.
void RouterProcess::LetATwinAsk(const std::vector<router::Worker>& here) {
  const router::Worker& member = here[Draw(world_, here)];
  if (member.suspect) return;
  Info twin = member.info;
  twin.instance.incarnation ^= 1;
  ExpectMisfit(twin, absl::StrCat("another process of the name ", twin.instance.id, " lives"));
}

// One of each kind, made of what `like` says of itself.
void RouterProcess::LetIntrudersAsk(const router::WorkerInfo& like) {
  if (topology_.stranger) return;  // Their applications would count with its own.
  const auto ask = [this](const Info& intruder) {
    Handle(router::LeaseAsked{kOfIntruder, intruder, {}, kOfIntruderCalls});
    return intruder_told_;
  };
  const Malformed& malformed = kMalformed[Draw(world_, kMalformed)];
  Info stage = StageOf(like);
  malformed.spoil(stage);
  const absl::Status refusal = ask(stage);
  const std::string field = FieldOf(refusal).value_or("");
  const auto code =
      *malformed.field == '\0' ? absl::StatusCode::kOutOfRange : absl::StatusCode::kInvalidArgument;
  if (refusal.code() != code || field != malformed.field) {
    world_.Violate(absl::StrCat("a worker with a wrong ", malformed.field,
                                " is answered with: ", refusal.ToString()));
  }

  if (!HasPlaces()) return;  // Any worker is refused for that.
  LetAnotherShapeAsk();
  // The first to come fits, and a draining member blocks none.
  const std::vector<router::Worker> here = core_.membership().Workers();
  const auto decode = std::find_if(here.begin(), here.end(), [](const router::Worker& member) {
    return !member.draining && member.info.role == Role::kDecode;
  });
  if (decode == here.end()) return;
  const Misfit& misfit = kMisfits[Draw(world_, kMisfits)];
  Info other = decode->info;
  other.tensor_rank = {};
  other.instance = {absl::StrCat("intruder with another ", misfit.property), 1};
  misfit.differ(other);
  ExpectMisfit(other, misfit.property);
}

}  // namespace baton::sim
