#include "common/base/failpoint.h"

#include <signal.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/log.h"
#include "common/base/sync.h"

namespace baton {
namespace {

struct Armed {
  std::string action;
  int delay_ms = 0;
  int only_hit = 0;  // 0: every hit that `every` lets.
  int every = 1;
  int hits = 0;
};

struct Table {
  Mutex mutex;
  std::map<std::string, Armed, std::less<>> armed ABSL_GUARDED_BY(mutex);
};

// Never destroyed: threads may still pass failpoints while the process exits.
Table& TheTable() {
  static auto* table = new Table;
  return *table;
}

absl::Status ParseEntry(absl::string_view entry, std::string& name, Armed& armed) {
  const std::vector<std::string> halves = absl::StrSplit(entry, absl::MaxSplits('=', 1));
  const auto bad = [entry] {
    return absl::InvalidArgumentError(
        absl::StrCat("failpoint \"", entry,
                     "\": expected NAME=kill|stop|error|delay:MS, optionally with @N or %N"));
  };
  if (halves.size() != 2 || halves[0].empty()) return bad();
  name = halves[0];
  const std::vector<std::string> at =
      absl::StrSplit(halves[1], absl::MaxSplits(absl::ByAnyChar("@%"), 1));
  if (at.size() == 2) {
    int& number = absl::StrContains(halves[1], '@') ? armed.only_hit : armed.every;
    if (!absl::SimpleAtoi(at[1], &number) || number < 1) return bad();
  }
  const std::vector<std::string> words = absl::StrSplit(at[0], absl::MaxSplits(':', 1));
  armed.action = words[0];
  if (armed.action == "delay") {
    if (words.size() != 2 || !absl::SimpleAtoi(words[1], &armed.delay_ms) || armed.delay_ms < 0) {
      return bad();
    }
    return absl::OkStatus();
  }
  const bool known = armed.action == "kill" || armed.action == "stop" || armed.action == "error";
  return known && words.size() == 1 ? absl::OkStatus() : bad();
}

}  // namespace

namespace internal {

std::atomic<bool> failpoints_armed{false};

absl::Status HitFailpoint(std::string_view name) {
  Armed act;
  {
    Table& table = TheTable();
    MutexLock lock(&table.mutex);
    const auto it = table.armed.find(name);
    if (it == table.armed.end()) return absl::OkStatus();
    Armed& armed = it->second;
    ++armed.hits;
    if (armed.only_hit != 0 && armed.hits != armed.only_hit) return absl::OkStatus();
    if (armed.hits % armed.every != 0) return absl::OkStatus();
    act = armed;
  }
  LOG(kWarning) << "failpoint " << name << ": " << act.action << " at hit " << act.hits;
  if (act.action == "kill") kill(getpid(), SIGKILL);
  if (act.action == "stop") kill(getpid(), SIGSTOP);
  if (act.action == "delay") absl::SleepFor(absl::Milliseconds(act.delay_ms));
  if (act.action == "error") {
    return absl::UnavailableError(
        absl::StrCat("failpoint ", absl::string_view(name.data(), name.size())));
  }
  return absl::OkStatus();
}

}  // namespace internal

absl::Status ArmFailpoints(std::string_view specification) {
  std::map<std::string, Armed, std::less<>> parsed;
  for (absl::string_view entry :
       absl::StrSplit(absl::string_view(specification.data(), specification.size()), ';',
                      absl::SkipWhitespace())) {
    std::string name;
    Armed armed;
    if (absl::Status status = ParseEntry(entry, name, armed); !status.ok()) return status;
    parsed[name] = armed;
  }
  Table& table = TheTable();
  MutexLock lock(&table.mutex);
  internal::failpoints_armed.store(!parsed.empty(), std::memory_order_relaxed);
  table.armed = std::move(parsed);
  return absl::OkStatus();
}

}  // namespace baton
