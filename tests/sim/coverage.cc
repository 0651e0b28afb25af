#include "tests/sim/coverage.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/coverage.h"

namespace baton::sim {
namespace {

struct Excuse {
  const char* row;
  const char* reason;
};
// Each with what would have to be simulated for it, or why it cannot happen.
constexpr Excuse kExcuses[] = {
    {"planner: a drain hands back", "only several routers overfill a service; planner_grants_test"},
    {"planner: a first token is outside the vocabulary",
     "few kernels go wrong so; planner_grants_test"},
    {"lease: refused as bad_commit", "no stage sends one; lease_table_test"},
    {"lease: refused as bad_length", "no stage sends one; lease_table_test"},
    {"lease: refused as bad_range", "no stage sends one; lease_table_test"},
    {"lease: KV is late for the deadline",
     "the core's own timer nearly always ends it first; lease_table_test"},
    {"link: an epoch never begins", "ten seconds without a connection; link_test"},
    {"decode: no stream comes",
     "a router is lost, or stands still, between an answer and its stream; ticket_book_test"},
    {"router: what is refused has nowhere to go",
     "a refusal that comes long after its pair came apart; overload_test"},
    {"membership: a lost worker is forgotten for another",
     "as many as may be members are lost within a grace, once in some ten thousand seeds; "
     "membership_times_test"},
    {"planner: prompt tokens out of turn", "no stage tells them so; chain_planner_test"},
    {"wiring: a stage is not ready in time",
     "a group that does not form ends sooner, else ten seconds without a connection; wiring_test"},
};

// As the codes are numbered.
constexpr std::array<const char*, 17> kCodes = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};
// How requests do end; other codes have no row until they happen.
constexpr absl::StatusCode kExpectedCodes[] = {
    absl::StatusCode::kOk, absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kAlreadyExists,
    absl::StatusCode::kResourceExhausted, absl::StatusCode::kUnavailable};
constexpr size_t kRefusals = static_cast<size_t>(KvRefusal::kBadCommit) + 1;

struct Counts {
  uint64_t runs = 0;
  std::array<uint64_t, kWeatherCount> weathers{};
  std::array<uint64_t, kFaultKindCount> faults{};
  std::map<std::string, uint64_t> network;
  std::array<uint64_t, kRefusals> refusals{};
  std::array<uint64_t, kCodes.size()> outcomes{};
};

Counts& TheCounts() {
  static Counts& counts = *new Counts;
  return counts;
}

}  // namespace

void CountRun(Weather weather) {
  ++TheCounts().runs;
  ++TheCounts().weathers[static_cast<size_t>(weather)];
}

void CountFault(FaultKind kind) { ++TheCounts().faults[static_cast<size_t>(kind)]; }

void CountNetworkFault(double NetworkFaults::*chance) {
  for (const NetworkFaultKind& kind : NetworkFaultKinds()) {
    if (kind.chance == chance) ++TheCounts().network[kind.name];
  }
}

void CountRefusal(KvRefusal refusal) { ++TheCounts().refusals[static_cast<size_t>(refusal)]; }

void CountOutcome(const absl::Status& status) {
  const auto code = static_cast<size_t>(status.code());
  if (code < kCodes.size()) ++TheCounts().outcomes[code];
}

uint64_t CountedRuns() { return TheCounts().runs; }

std::vector<CoverageRow> Coverage() {
  const Counts& counts = TheCounts();
  std::map<std::string, uint64_t> rows;
  for (const CoverageMark* mark = CoverageMark::first(); mark != nullptr; mark = mark->next()) {
    rows[mark->name()] += mark->count();
  }
  for (size_t i = 0; i < counts.weathers.size(); ++i) {
    rows[absl::StrCat("weather: ", WeatherName(static_cast<Weather>(i)))] = counts.weathers[i];
  }
  for (size_t i = 0; i < counts.faults.size(); ++i) {
    rows[absl::StrCat("fault: ", FaultName(static_cast<FaultKind>(i)))] = counts.faults[i];
  }
  for (const NetworkFaultKind& kind : NetworkFaultKinds()) {
    const auto found = counts.network.find(kind.name);
    rows[absl::StrCat("network: ", kind.name)] = found == counts.network.end() ? 0 : found->second;
  }
  for (size_t i = 0; i < counts.refusals.size(); ++i) {
    const char* name = KvRefusalName(static_cast<KvRefusal>(i));
    rows[absl::StrCat("lease: refused as ", name)] = counts.refusals[i];
  }
  for (size_t i = 0; i < counts.outcomes.size(); ++i) {
    const auto code = static_cast<absl::StatusCode>(i);
    const bool expected = std::find(std::begin(kExpectedCodes), std::end(kExpectedCodes), code) !=
                          std::end(kExpectedCodes);
    if (expected) rows[absl::StrCat("client: ends with ", kCodes[i])] = counts.outcomes[i];
  }
  std::vector<CoverageRow> table;
  for (const auto& row : rows) {
    const auto excuse = std::find_if(std::begin(kExcuses), std::end(kExcuses),
                                     [&](const Excuse& e) { return row.first == e.row; });
    table.push_back(
        {row.first, row.second, excuse == std::end(kExcuses) ? nullptr : excuse->reason});
  }
  return table;
}

std::vector<CoverageRow> ThinRows() {
  const uint64_t least = kLeastHits * CountedRuns() / kSeedsOfLeastHits;
  std::vector<CoverageRow> thin = Coverage();
  std::erase_if(
      thin, [least](const CoverageRow& row) { return row.excuse != nullptr || row.hits >= least; });
  return thin;
}

}  // namespace baton::sim
