// Requests that wait, and whose is next: of the tenants that wait the one that has been served the
// least, and of its requests the first in turn. Plain data of RouterCore.
//
// Each tenant has a count of the work that it was given, in tokens (kDrawnTokenWork). A request's
// tag is the count before it. One that comes after a silence is lifted to the tag of what was
// computed last, less what a silence may save up: a tenant that asks for less than its share, but
// for several requests at once, doesn't wait for others between them. One that is not known begins
// at the average, which grows with all work, so that tenants are not overtaken by new ones for
// ever.
//
// Sources: start-time fair queueing (Goyal, Vin, Cheng 1996); the virtual token counter of
// "Fairness in Serving Large Language Models" (Sheng et al. 2024). Rejected: deficit round robin,
// which has to know what an answer costs before it begins.
#ifndef SERVICES_ROUTER_CORE_FAIR_QUEUE_H_
#define SERVICES_ROUTER_CORE_FAIR_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "common/types/instance.h"
#include "common/types/turn.h"

namespace baton::router {

class FairQueue {
 public:
  FairQueue() = default;
  FairQueue(FairQueue&&) = default;  // No copy: places point at shares.
  FairQueue& operator=(FairQueue&&) = default;

  // A token of an answer, in tokens of a prompt.
  static constexpr int64_t kDrawnTokenWork = 2;
  // What a silence saves up, at most.
  static constexpr double kMostSaved = 32'768;
  // So many tenants that have no request here are remembered.
  static constexpr size_t kMostTenants = 65'536;

  // Requests of the tenant that are here, waiting or not.
  void Come(const std::string& tenant);
  void Go(const std::string& tenant);

  // The tenant has a request here.
  void Add(const std::string& tenant, Turn turn, uint64_t call_id);
  void Remove(const std::string& tenant, Turn turn);  // Nothing if it does not wait.
  // One of its requests is given to workers, for so much work; its tag.
  double Begin(const std::string& tenant, int64_t work);
  // The prompt of one that has begun is computed. It was `more` work than it was begun for.
  void Through(const std::string& tenant, int64_t work, int64_t more);
  // One that has begun is given up before.
  void Drop(const std::string& tenant);
  // It is served what was not known when it began.
  void Serve(const std::string& tenant, int64_t work);

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  // The call that is next, if one waits.
  std::optional<uint64_t> Next() const {
    if (order_.empty()) return std::nullopt;
    return std::get<const Share*>(*order_.begin())->waiting.begin()->second;
  }
  // Requests that would be served before one that the tenant adds behind its own.
  size_t CountAhead(const std::string& tenant) const;
  // The last request of the tenant that has most waiting, if it is to give up its place to one of
  // `tenant`, which has fewer by two at least.
  std::optional<uint64_t> GivesWayTo(const std::string& tenant) const;
  // Tenant by tenant.
  std::vector<uint64_t> All() const;
  size_t CountOf(const std::string& tenant) const;  // Those of it that wait.
  size_t remembered() const { return shares_.size(); }

 private:
  struct Share {
    std::string_view tenant;  // The key.
    double served = 0;
    uint64_t last = 0;  // Among those served alike the one that was served longest ago.
    int64_t present = 0;
    std::map<Turn, uint64_t> waiting;  // Calls.
    // Tags of those that have begun and whose prompts are not computed.
    std::multiset<double> begun = {};
  };
  using Place = std::tuple<double, uint64_t, std::string_view, const Share*>;

  static Place PlaceOf(const Share& share) {
    return {share.served, share.last, share.tenant, &share};
  }
  void ForgetAbsent();
  // Its count, without what it has saved up beyond kMostSaved.
  double Lifted(const Share& share) const;
  void Set(Share& share, double served);

  std::unordered_map<std::string, Share> shares_;
  std::set<Place> order_;  // Tenants that wait.
  size_t size_ = 0;
  size_t present_ = 0;  // Tenants with requests here.
  double through_ = 0;  // The largest tag of what is computed.
  double average_ = 0;
  uint64_t services_ = 0;
};

// Prompts that chains were given and are not through with. A chain serves them by their arrival,
// and the fair order puts another one among them.
class FairTurns {
 public:
  // A chain counts from when a prompt reaches it, and prompts are on their way for different times:
  // one goes before another by so much, or chance would decide.
  static constexpr int64_t kUncertainUs = 10'000;

  // The chain is given a prompt now. By how much earlier it is to count as having come: before the
  // first of other tenants' whose tag is larger.
  int64_t Give(const InstanceRef& chain, uint64_t attempt_id, const std::string& tenant, double tag,
               int64_t now_us);
  void Through(const InstanceRef& chain, uint64_t attempt_id);
  bool empty() const { return given_.empty(); }

 private:
  struct Given {
    uint64_t attempt_id = 0;
    std::string tenant;
    double tag = 0;
    int64_t from_us = 0;
  };

  std::map<InstanceRef, std::vector<Given>> given_;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_FAIR_QUEUE_H_
