#include "services/worker/name_resolver.h"

#include <pthread.h>

#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/base/failpoint.h"
#include "common/base/sync.h"

namespace baton::worker {

struct NameResolver::Shared {
  Lookup lookup;
  std::function<void(const std::string&, Addresses)> on_result;
  Mutex mutex;
  bool over ABSL_GUARDED_BY(mutex) = false;
};

NameResolver::NameResolver(Lookup lookup,
                           std::function<void(const std::string&, Addresses)> on_result)
    : shared_(std::make_shared<Shared>()) {
  shared_->lookup = std::move(lookup);
  shared_->on_result = std::move(on_result);
}

NameResolver::~NameResolver() {
  MutexLock lock(&shared_->mutex);
  shared_->over = true;
}

void NameResolver::Resolve(const std::string& name) {
  std::thread([shared = shared_, name] {
    pthread_setname_np(pthread_self(), "baton-resolve");
    const absl::Status failpoint = Failpoint("worker.resolve");
    Addresses addresses = failpoint.ok() ? shared->lookup(name) : Addresses(failpoint);
    MutexLock lock(&shared->mutex);
    if (!shared->over) shared->on_result(name, std::move(addresses));
  }).detach();
}

}  // namespace baton::worker
