// Looks names up without holding anybody up: each lookup has a thread of its own, and one that DNS
// lets hang is left behind when its owner goes.
#ifndef SERVICES_WORKER_NAME_RESOLVER_H_
#define SERVICES_WORKER_NAME_RESOLVER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::worker {

class NameResolver {
 public:
  using Addresses = absl::StatusOr<std::vector<std::string>>;  // Numeric HOST:PORT.
  // May block for as long as it takes; any thread, also after the resolver has gone.
  using Lookup = std::function<Addresses(const std::string& host_port)>;

  // `on_result` runs on a lookup's thread and must not block.
  NameResolver(Lookup lookup, std::function<void(const std::string& name, Addresses)> on_result);
  // Nothing is told after it; does not wait for lookups.
  ~NameResolver();
  NameResolver(const NameResolver&) = delete;
  NameResolver& operator=(const NameResolver&) = delete;

  // The caller has one lookup of a name at a time under way, which bounds their number.
  void Resolve(const std::string& name);

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace baton::worker

#endif  // SERVICES_WORKER_NAME_RESOLVER_H_
