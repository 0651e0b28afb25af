// Whether what a request says its text must be can be kept to, told before the request is taken.
#ifndef SERVICES_ROUTER_STRUCTURE_CHECK_H_
#define SERVICES_ROUTER_STRUCTURE_CHECK_H_

#include <cstddef>
#include <list>
#include <string>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/sync.h"
#include "proto/baton/v1/common.pb.h"

namespace baton::router {

// Compiles one at a time, and remembers the latest that can be kept to: what is known does not wait
// behind what is compiled. Thread-safe.
class StructureCheck {
 public:
  // INVALID_ARGUMENT that names `field`; on the caller's thread, milliseconds for a new one.
  absl::Status Check(const v1::TextStructure& structure, const std::string& field);

  static constexpr size_t kMaxKept = 256;

 private:
  bool Knows(const std::string& key) ABSL_LOCKS_EXCLUDED(mutex_);
  void Keep(std::string key) ABSL_LOCKS_EXCLUDED(mutex_);

  Mutex compiling_;  // Taken before mutex_.
  Mutex mutex_;
  std::list<std::string> kept_ ABSL_GUARDED_BY(mutex_);  // The latest used first.
  std::unordered_map<std::string, std::list<std::string>::iterator> by_key_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_STRUCTURE_CHECK_H_
