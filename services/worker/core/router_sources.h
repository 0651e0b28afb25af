// Where routers are: addresses that names resolve to, and those that routers announce themselves.
// A name that fails to resolve keeps the addresses that it had: an outage of DNS loses no router.
// Plain data of Memberships, which decides what becomes of an address that no source names.
#ifndef SERVICES_WORKER_CORE_ROUTER_SOURCES_H_
#define SERVICES_WORKER_CORE_ROUTER_SOURCES_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::worker {

class RouterSources {
 public:
  // `names` are resolved every `every_us`, and soon after a router is lost. `numeric` addresses
  // stand for themselves.
  RouterSources(const std::vector<std::string>& names, const std::vector<std::string>& numeric,
                int64_t every_us);

  // The names whose resolution is due, which has then begun.
  std::vector<std::string> BeginResolving(int64_t now_us);
  void Resolved(const std::string& name, const absl::StatusOr<std::vector<std::string>>& addresses,
                int64_t now_us);
  // A router was lost: names may lead elsewhere now.
  void ResolveSoon(int64_t now_us);

  // Counts until `until_us` unless it is announced again.
  void Announced(const std::string& address, int64_t until_us);
  void Expire(int64_t now_us);

  std::set<std::string> Addresses() const;
  int64_t NextDeadlineUs() const;

 private:
  struct Name {
    std::vector<std::string> addresses;
    bool resolving = false;
    int64_t asked_us = 0;
    int64_t due_us = 0;
  };
  const int64_t every_us_;
  const std::vector<std::string> numeric_;
  std::map<std::string, Name> names_;
  std::map<std::string, int64_t> announced_;  // Address -> until when it counts.
};

}  // namespace baton::worker

#endif  // SERVICES_WORKER_CORE_ROUTER_SOURCES_H_
