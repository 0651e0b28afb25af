// To whom a router announces itself, and when: every pod that may hold a worker, again and again,
// since it is by this that a worker which has lost the router finds it. Event in, actions out;
// deterministic.
#ifndef SERVICES_ROUTER_DISCOVERY_CORE_ANNOUNCER_H_
#define SERVICES_ROUTER_DISCOVERY_CORE_ANNOUNCER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "services/router/discovery/core/pod.h"

namespace baton::router {

class Announcer {
 public:
  // `default_port`: of pods without a container port of that name; 0: such pods are left out.
  explicit Announcer(int default_port) : default_port_(default_port) {}

  // These are the pods now. One that is new, or whose containers were started again, is announced
  // to at once. Returns the addresses that are none any more.
  std::vector<std::string> SetPods(const std::map<std::string, Pod>& pods, int64_t now_us);
  // The addresses (HOST:PORT) whose announcement is due; each must be answered.
  std::vector<std::string> BeginAnnouncing(int64_t now_us);
  void Answered(const std::string& address, const absl::Status& status, int64_t now_us);
  int64_t NextDeadlineUs() const;

  size_t size() const { return targets_.size(); }
  int failures(const std::string& address) const;  // In a row.

 private:
  struct Target {
    std::string life;  // Pod and restarts.
    bool under_way = false;
    bool again = false;  // Its life changed while one was.
    int failures = 0;
    int64_t due_us = 0;
  };
  const int default_port_;
  std::map<std::string, Target> targets_;
  size_t under_way_ = 0;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_DISCOVERY_CORE_ANNOUNCER_H_
