#include "common/collective/communicator.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace baton {
namespace {

constexpr char kRankUrl[] = "baton/rank";

absl::Status Refuse(CollectiveKind kind, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(CollectiveName(kind), ": ", why));
}

absl::Status ValidateView(CollectiveKind kind, const TensorView& view,
                          std::optional<int> cuda_device) {
  if (view.rows <= 0 || view.columns <= 0) {
    return Refuse(kind, absl::StrCat("nothing to exchange in ", view.ToString()));
  }
  if (view.memory.bytes != view.bytes()) {
    return Refuse(kind, absl::StrCat(view.ToString(), " lies in ", view.memory.bytes, " bytes"));
  }
  if (!cuda_device.has_value()) {
    if (view.memory.ReadableByHost()) return absl::OkStatus();
    return Refuse(kind, absl::StrCat(view.ToString(), " is out of the host's reach"));
  }
  const bool there = view.memory.kind == MemoryKind::kCuda && view.memory.device == *cuda_device;
  if (there) return absl::OkStatus();
  return Refuse(kind, absl::StrCat(view.ToString(), " of device ", view.memory.device,
                                   ", expected CUDA memory of device ", *cuda_device));
}

bool ReadsInput(CollectiveKind kind) { return kind != CollectiveKind::kReceive; }
bool WritesOutput(CollectiveKind kind) { return kind != CollectiveKind::kSend; }

// The views are already valid on their own.
absl::Status ValidateSizes(const Collective& collective, size_t size) {
  const size_t input = collective.input.bytes();
  const size_t output = collective.output.bytes();
  const bool fits =
      output == (collective.kind == CollectiveKind::kAllGather ? input * size : input);
  if (fits && collective.input.type == collective.output.type) return absl::OkStatus();
  return Refuse(collective.kind,
                absl::StrCat(collective.input.ToString(), " does not go into ",
                             collective.output.ToString(), " with ", size, " ranks"));
}

}  // namespace

const char* CollectiveName(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all-reduce";
    case CollectiveKind::kAllGather:
      return "all-gather";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kSend:
      return "send";
    case CollectiveKind::kReceive:
      return "receive";
  }
  return "unknown collective";
}

std::string GroupDescription::Describe(int of_rank) const {
  if (of_rank < 0 || of_rank >= size()) return absl::StrCat("rank ", of_rank, " of ", name);
  return absl::StrCat("rank ", of_rank, " of ", name, " (", members[of_rank], ")");
}

absl::Status ValidateGroup(const GroupDescription& group) {
  if (group.size() < 1 || group.size() > kGroupSizeMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(group.name, " has ", group.size(), " ranks, expected 1 to ", kGroupSizeMax));
  }
  if (group.rank < 0 || group.rank >= group.size()) {
    return absl::InvalidArgumentError(absl::StrCat(group.name, " has ", group.size(),
                                                   " ranks and none with number ", group.rank));
  }
  return absl::OkStatus();
}

absl::Status ValidateCollective(const GroupDescription& group, const Collective& collective,
                                std::optional<int> cuda_device) {
  const CollectiveKind kind = collective.kind;
  if (ReadsInput(kind)) {
    if (absl::Status status = ValidateView(kind, collective.input, cuda_device); !status.ok())
      return status;
  }
  if (WritesOutput(kind)) {
    if (absl::Status status = ValidateView(kind, collective.output, cuda_device); !status.ok())
      return status;
  }
  if (ReadsInput(kind) && WritesOutput(kind)) {
    absl::Status status = ValidateSizes(collective, static_cast<size_t>(group.size()));
    if (!status.ok()) return status;
  }
  const bool to_itself = (kind == CollectiveKind::kSend || kind == CollectiveKind::kReceive) &&
                         collective.peer == group.rank;
  if (collective.peer < 0 || collective.peer >= group.size() || to_itself) {
    return Refuse(kind, absl::StrCat("no peer ", collective.peer, " for ",
                                     group.Describe(group.rank), " of ", group.size(), " ranks"));
  }
  return absl::OkStatus();
}

absl::Status WithRank(absl::Status status, int rank) {
  status.SetPayload(kRankUrl, absl::Cord(absl::StrCat(rank)));
  return status;
}

std::optional<int> RankOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kRankUrl);
  int rank = 0;
  if (!payload || !absl::SimpleAtoi(std::string(*payload), &rank)) return std::nullopt;
  return rank;
}

}  // namespace baton
