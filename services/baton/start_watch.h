// Watches from outside how several processes start, until all of them are ready, and says for
// people how far they have come. A thread of its own, so that the supervisor's stays free for
// signals.
#ifndef SERVICES_BATON_START_WATCH_H_
#define SERVICES_BATON_START_WATCH_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"
#include "proto/baton/v1/cluster.pb.h"
#include "services/baton/supervisor.h"

namespace baton {

// Processes that are counted together.
struct StartingGroup {
  std::string name;                // "chain-0", "decode"
  std::string unit;                // What they are: "ranks", "stages", "services".
  std::vector<std::string> names;  // One for each.
};

enum class StartState {
  kAbsent,
  kHere,  // Not ready yet: it waits for others.
  kReady,
};

// What the lines on progress are about.
struct StartSubject {
  std::string begin;  // Stands first in every line: "cluster starting".
  std::string here;   // What those are that are kHere: "registered".
  std::vector<StartingGroup> groups;
};

// A line whenever a count has changed. Pure.
class StartProgress {
 public:
  explicit StartProgress(StartSubject subject) : subject_(std::move(subject)) {}

  // "cluster starting: chain-0: 2 of 4 ranks ready, 3 registered; decode: 1 of 1 services ready";
  // empty if it would repeat the last note, and while no worker is there. `states`: by worker, of
  // those that are not absent.
  std::string Note(const std::map<std::string, StartState>& states);

 private:
  const StartSubject subject_;
  std::string said_;
};

// What one look at the processes finds.
struct StartView {
  bool known = true;                         // Whether `states` says something.
  std::map<std::string, StartState> states;  // By worker; those that are not named are absent.
  std::vector<std::string> missing;          // For people. None: all is ready.
  bool started = false;                      // What is missing now, if anything, is elsewhere.
  std::vector<v1::ListedWorker> workers;     // As a cluster's router lists them.
  int look_again_ms = 100;
};

// By a process's name: the incarnation that listens. Only answers of these count: another process
// may have the port, and one of a former run a worker's name.
using Incarnations = std::map<std::string, uint64_t>;

// Takes up to a few seconds, on the watch's thread.
using LookAtStart = std::function<StartView(const Incarnations& listening)>;

class StartWatch {
 public:
  // `ready_text`: what is said last, of the view in which all is ready.
  StartWatch(StartSubject subject, LookAtStart look,
             std::function<std::string(const StartView& ready)> ready_text);
  ~StartWatch();  // Ends what is under way.
  StartWatch(const StartWatch&) = delete;
  StartWatch& operator=(const StartWatch&) = delete;

  // What the supervisor asks and tells it.
  SupervisorWatch ForSupervisor();

 private:
  void Run();
  void Take(const StartView& view);

  LookAtStart look_;        // The thread's own.
  StartProgress progress_;  // Likewise.
  const std::function<std::string(const StartView&)> ready_text_;
  Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Incarnations listening_ ABSL_GUARDED_BY(mutex_);
  StartNews news_ ABSL_GUARDED_BY(mutex_);  // Its lines: since they were asked for last.
  std::thread thread_;
};

}  // namespace baton

#endif  // SERVICES_BATON_START_WATCH_H_
