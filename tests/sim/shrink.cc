#include "tests/sim/shrink.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "common/base/random.h"

namespace baton::sim {
namespace {

constexpr int kChancesEach = 6;
constexpr int kMostRuns = 3000;
constexpr size_t kShapeLength = 60;

// Which promise was broken, without whose and when.
std::string ShapeOf(const std::string& violation) {
  std::string shape;
  for (const char c : violation) {
    if (absl::ascii_isdigit(static_cast<unsigned char>(c)) == 0) shape.push_back(c);
  }
  return shape.substr(0, kShapeLength);
}

// Where node `node` of one cluster is in another one; -1: nowhere.
int NodeIn(int node, const Topology& from, const Topology& to) {
  if (node < 0) return -1;
  if (from.IsRouter(node)) return node < to.routers ? node : -1;
  if (from.IsDecode(node)) {
    const int decode = from.DecodeOf(node);
    const int stage = from.DecodeStageOf(node);
    const int rank = from.DecodeRankOf(node).rank;
    if (stage >= to.decode_stages || rank >= to.decode_ranks) return -1;
    if (from.IsColocated(node)) {
      const int chain = decode - from.decodes;
      if (chain >= to.colocated) return -1;
      return to.DecodeNode(to.decodes + chain, stage * to.decode_ranks + rank);
    }
    if (decode >= to.decodes) return -1;
    return to.DecodeNode(decode, stage * to.decode_ranks + rank);
  }
  const int chain = from.ChainOf(node);
  const int stage = from.StageOf(node);
  const int rank = from.RankOf(node).rank;
  if (chain >= to.chains || stage >= to.stages || rank >= to.ranks) return -1;
  return to.MemberNode(chain, stage * to.ranks + rank);
}

class Shrinker {
 public:
  Shrinker(Scenario scenario, const std::string& violation, const Judge& judge)
      : best_{std::move(scenario), 0}, shape_(ShapeOf(violation)), judge_(judge) {}

  Shrunken Run() {
    bool smaller = true;
    while (smaller && best_.runs < kMostRuns) {
      smaller = false;
      smaller |= LeaveOut(&Scenario::clients);
      smaller |= LeaveOut(&Scenario::faults);
      smaller |= QuietNetwork();
      smaller |= SmallerCluster();
    }
    return std::move(best_);
  }

 private:
  bool Fails(const Scenario& candidate) {
    ++best_.runs;
    return ShapeOf(judge_(candidate)) == shape_;
  }

  bool Try(Scenario candidate) {
    const uint64_t own = candidate.chance_seed;
    for (int i = 0; i < kChancesEach && best_.runs < kMostRuns; ++i) {
      candidate.chance_seed = i == 0 ? own : Mix64(own + static_cast<uint64_t>(i));
      if (!Fails(candidate)) continue;
      best_.scenario = std::move(candidate);
      return true;
    }
    return false;
  }

  // Halves first, then smaller and smaller parts.
  template <typename Item>
  bool LeaveOut(std::vector<Item> Scenario::*items) {
    bool smaller = false;
    for (size_t part = ((best_.scenario.*items).size() + 1) / 2; part > 0; part /= 2) {
      for (size_t begin = 0; begin < (best_.scenario.*items).size();) {
        Scenario candidate = best_.scenario;
        std::vector<Item>& left = candidate.*items;
        const size_t end = std::min(left.size(), begin + part);
        left.erase(left.begin() + static_cast<std::ptrdiff_t>(begin),
                   left.begin() + static_cast<std::ptrdiff_t>(end));
        const bool gone = Try(std::move(candidate));
        smaller |= gone;
        if (!gone) begin += part;
      }
    }
    return smaller;
  }

  bool QuietNetwork() {
    bool smaller = false;
    for (const NetworkFaultKind& kind : NetworkFaultKinds()) {
      if (best_.scenario.network.*kind.chance == 0) continue;
      Scenario candidate = best_.scenario;
      candidate.network.*kind.chance = 0;
      smaller |= Try(std::move(candidate));
    }
    if (best_.scenario.network.bytes_per_ms > 0) {
      Scenario candidate = best_.scenario;
      candidate.network.bytes_per_ms = 0;
      smaller |= Try(std::move(candidate));
    }
    return smaller;
  }

  bool SmallerCluster() {
    bool smaller = false;
    for (int Topology::*size : {&Topology::chains, &Topology::routers, &Topology::decodes,
                                &Topology::stages, &Topology::decode_stages}) {
      while (best_.scenario.topology.*size > 1) {
        Topology topology = best_.scenario.topology;
        --(topology.*size);
        topology.layers = std::max(topology.layers, topology.stages);
        if (!Try(WithShape(best_.scenario, topology))) break;
        smaller = true;
      }
    }
    for (int Topology::*ranks : {&Topology::ranks, &Topology::decode_ranks}) {
      while (best_.scenario.topology.*ranks > 1) {
        Topology topology = best_.scenario.topology;
        topology.*ranks /= 2;
        if (!Try(WithShape(best_.scenario, topology))) break;
        smaller = true;
      }
    }
    while (best_.scenario.topology.colocated > 0) {
      Topology topology = best_.scenario.topology;
      --topology.colocated;
      if (!Try(WithShape(best_.scenario, topology))) break;
      smaller = true;
    }
    while (best_.scenario.topology.layers >
           std::max(best_.scenario.topology.stages, best_.scenario.topology.decode_stages)) {
      Scenario candidate = best_.scenario;
      --candidate.topology.layers;
      if (!Try(std::move(candidate))) break;
      smaller = true;
    }
    return smaller;
  }

  Shrunken best_;
  const std::string shape_;
  const Judge& judge_;
};

}  // namespace

Scenario WithShape(const Scenario& scenario, const Topology& smaller) {
  Scenario result = scenario;
  result.topology = smaller;
  result.faults.clear();
  for (Fault fault : scenario.faults) {
    const bool pair = fault.other >= 0;
    const bool nobodys = fault.node < 0;
    fault.node = NodeIn(fault.node, scenario.topology, smaller);
    fault.other = NodeIn(fault.other, scenario.topology, smaller);
    if ((fault.node < 0 && !nobodys) || (pair && fault.other < 0)) continue;
    result.faults.push_back(fault);
  }
  for (Client& client : result.clients) {
    if (client.router >= smaller.routers) client.router = 0;
  }
  return result;
}

Shrunken Shrink(Scenario scenario, const std::string& violation, const Judge& judge) {
  return Shrinker(std::move(scenario), violation, judge).Run();
}

}  // namespace baton::sim
