// Pairing over a list of pairs, as a test writes it down.
#ifndef SERVICES_ROUTER_CORE_PAIRING_FIXTURE_H_
#define SERVICES_ROUTER_CORE_PAIRING_FIXTURE_H_

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/router/core/pairing.h"
#include "services/router/core/test_cluster.h"

namespace baton::router {

class TestPairing : public Pairing {
 public:
  using Pairing::Pairing;

  absl::StatusOr<Pair> Choose(const std::vector<Pair>& pairs, const Ask& ask,
                              const FailedPair* failed = nullptr) {
    Seat(pairs);
    auto choice = Pairing::Choose(roster_, ask, failed);
    if (choice.ok() || IsOverloaded(choice.status())) {
      EXPECT_EQ(CouldTake(pairs, ask, failed), choice.ok());
    }
    if (!choice.ok()) return choice.status();
    kind_ = choice->kind;
    return choice->pair;
  }
  absl::StatusOr<Pair> Choose(const std::vector<Pair>& pairs, int prompt_tokens, int max_tokens,
                              const FailedPair* failed, bool clip = false) {
    return Choose(pairs, {prompt_tokens, max_tokens, clip}, failed);
  }
  ChoiceKind kind() const { return kind_; }  // The last choice's.

 private:
  static GridName NameOf(const Pair& pair, Role role) {
    if (role == Role::kPrefill) return {role, false, pair.chain.chain_id};
    std::string id = pair.decode.id;
    for (const InstanceRef& rank : pair.followers) absl::StrAppend(&id, " ", rank.incarnation);
    return {role, true, id};
  }

  // The roster has these pairs and no others.
  void Seat(const std::vector<Pair>& pairs) {
    std::vector<GridName> order;
    std::map<GridName, Side> sides;
    std::set<std::pair<GridName, GridName>> met;
    for (const Pair& pair : pairs) {
      const GridName chain = NameOf(pair, Role::kPrefill);
      const GridName decode = NameOf(pair, Role::kDecode);
      if (sides.try_emplace(chain).second) order.push_back(chain);
      sides[chain].pair.chain = pair.chain;
      sides[chain].pair.page_size = pair.page_size;
      if (pair.colocated()) {
        sides[chain].pair = pair;
        continue;
      }
      met.emplace(chain, decode);
      if (sides.try_emplace(decode).second) order.push_back(decode);
      sides[decode].pair = pair;
      sides[decode].pair.chain = {};
    }
    for (const GridName& name : seated_) {
      if (!sides.contains(name)) Table(name).Rest(name);
    }
    for (const GridName& name : order) {
      Table(name).Put(name, sides[name]);
      seated_.insert(name);
    }
    roster_.unconnected.clear();
    for (const GridName& chain : order) {
      for (const GridName& decode : order) {
        if (chain.role == decode.role || chain.role != Role::kPrefill) continue;
        if (met.contains({chain, decode})) continue;
        roster_.unconnected.emplace(sides[chain].pair.chain.stage0.incarnation,
                                    sides[decode].pair.decode.incarnation);
      }
    }
  }
  SideTable& Table(const GridName& name) {
    return name.role == Role::kPrefill ? roster_.chains : roster_.decodes;
  }

  Roster roster_;
  std::set<GridName> seated_;
  ChoiceKind kind_ = ChoiceKind::kUncached;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_PAIRING_FIXTURE_H_
