// A rendezvous between ranks that can call one another: what the chain's links will do between
// processes.
#ifndef COMMON_COLLECTIVE_TESTING_LOCAL_WIRING_H_
#define COMMON_COLLECTIVE_TESTING_LOCAL_WIRING_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "common/base/sync.h"
#include "common/collective/rendezvous.h"

namespace baton::testing {

// Any thread.
class LocalWiring {
 public:
  using Hear = std::function<void(const Rendezvous::Message&)>;

  LocalWiring(std::string group, int64_t timeout_ms) : rendezvous_(std::move(group), timeout_ms) {}

  // `hear` is called under a lock, until its verdict.
  void Join(Rendezvous::Caller caller, const Rendezvous::Join& join, Hear hear);
  void Set(Rendezvous::Caller caller, const std::string& key, const std::string& value);
  void Connected(Rendezvous::Caller caller);

 private:
  void Deliver() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  Rendezvous rendezvous_ ABSL_GUARDED_BY(mutex_);
  std::map<Rendezvous::Caller, Hear> hearers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::testing

#endif  // COMMON_COLLECTIVE_TESTING_LOCAL_WIRING_H_
