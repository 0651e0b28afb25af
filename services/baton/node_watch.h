// Watches the workers of a starting node by their probes, until all are ready: registered, and
// the first rank when its chain or decode service stands, for which it waits for the other nodes. A
// thread of its own.
#ifndef SERVICES_BATON_NODE_WATCH_H_
#define SERVICES_BATON_NODE_WATCH_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"
#include "services/baton/start_progress.h"

namespace baton {

struct NodeWatchOptions {
  std::string host;                  // Numeric, of the workers' probes.
  std::map<std::string, int> ports;  // By worker.
  StartingGroup group;
};

class NodeWatch {
 public:
  explicit NodeWatch(NodeWatchOptions options);
  ~NodeWatch();  // Ends what is under way.
  NodeWatch(const NodeWatch&) = delete;
  NodeWatch& operator=(const NodeWatch&) = delete;

  // Any thread; at once.

  // A worker listens as this incarnation, or with 0 does not (StartWatch::on_incarnation). Until it
  // does, answers on its port come from another process.
  void OnIncarnation(const std::string& name, uint64_t incarnation);
  // Every worker has loaded: what they wait for now is elsewhere.
  bool started() const;
  // And every one has been ready at the same time.
  bool ready() const;
  // Who has not loaded, or why one is not ready, for people; empty once all are ready.
  std::string waiting_for() const;
  // Lines on how far it has come since the last call.
  std::vector<std::string> TakeNews();

 private:
  void Run();
  void Ask();

  const NodeWatchOptions options_;
  StartProgress progress_;  // The thread's own.
  mutable Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;
  std::string waiting_for_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> listening_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> news_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace baton

#endif  // SERVICES_BATON_NODE_WATCH_H_
