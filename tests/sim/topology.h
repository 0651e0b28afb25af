// The shape of one simulated cluster, drawn from the seed, and how names map to nodes.
#ifndef TESTS_SIM_TOPOLOGY_H_
#define TESTS_SIM_TOPOLOGY_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/chunking/chunk_policy.h"
#include "common/chunking/stage_cost.h"
#include "common/types/instance.h"
#include "common/types/kv_layout.h"
#include "services/router/core/policies/policy.h"
#include "tests/sim/timings.h"

namespace baton::sim {

struct Topology {
  int routers = 1;
  int stages = 1;         // Per chain.
  int ranks = 1;          // Per stage.
  int decode_stages = 1;  // Per decode service.
  int decode_ranks = 1;   // Per stage of one.
  int kv_heads = 2;
  bool slices = true;  // Each rank passes on its part of the activations, not all of them.
  int chains = 1;
  int decodes = 2;
  // Chains that decode what they read, beside the pairs. They are built as decode services are, and
  // numbered behind them.
  int colocated = 0;
  int layers = 8;
  int page_size = 16;
  int chunk_tokens = 64;
  ChunkRule chunk_rule = ChunkRule::kFixed;
  bool shares_plans = true;
  int prefill_pages = 64;
  int decode_pages = 64;
  // New tokens of a request for which a decode service holds pages from the beginning. 0: all.
  int reserved_tokens = 0;
  bool grows_much = false;  // Many texts are some pages long, and the pools are small.
  int max_running = 8;
  int max_queued = 16;
  int plan_window = 4;
  int activation_credits = 2;
  int plans_in_flight = 2;
  int max_attempts = 2;
  int max_context_tokens = 4096;
  size_t remembered = 1024;  // Early aborts, and outcomes for late streams, of a decode service.
  int max_requests = 64;     // Per router.
  int tenants = 1;           // That clients are of.
  // Each life of a worker has its own name, as if no name was configured.
  bool new_names = false;
  // The last decode service holds the weights of another model.
  bool stranger = false;
  // The last decode service (not counting the stranger) can neither be connected to nor connect.
  bool lonely = false;
  // In clusters of as many workers each is told of all; else of its chain or service alone.
  int told_of_all = 0;
  // Routers are in no name; they announce themselves to workers, as Kubernetes lets them.
  bool announced = false;
  router::Policy policy = router::Policy::kCost;
  int64_t step_us = 300;   // Fixed time of a decode step, without its sequences.
  int compute_factor = 1;  // How much longer than in a fast chain a chunk takes.
  // From then on the last stage takes kSlowdown times as long; or, if `unsteady`, each stage takes
  // a random time for a chunk, up to eight times what it did.
  int64_t changes_at_us = kNeverUs;
  // Stages know from elsewhere what chunks cost them, and this is that over what they do cost; 0:
  // they don't.
  double known_costs = 0;
  bool unsteady = false;
  static constexpr int kSlowdown = 4;
  static constexpr int kRowBytes = 32;  // A token's keys, or values, in a layer.
  int part_layers = 8;                  // Layers of a page that fit into one KV message.
  // One thing goes wrong at most, and every request is to be answered (scenario.h).
  bool calm = false;
  // Nothing goes wrong but that processes drain: requests may be ended by that alone.
  bool only_drains = false;
  int64_t clock_skew_us = 0;  // Wall clocks of processes differ by up to this, after restarts too.
  // Nothing goes wrong but that routers stand still or are late: they may lose no worker for it.
  bool only_routers_pause = false;
  Timings times;
  bool undisturbed = false;  // No message of the control plane is lost or late, no process pauses.
  // Nothing goes wrong but that all routers except the first die, start late or leave DNS: what
  // runs by the first one must not notice.
  bool first_router_stands = false;

  // Nodes: the routers, then the decode services' members and those of colocated chains, then the
  // other chains' members (links/core/hello.h).
  bool IsRouter(int node) const { return node < routers; }
  bool IsDecode(int node) const { return !IsRouter(node) && node < FirstMember(); }
  int decode_members() const { return decode_stages * decode_ranks; }  // Per service.
  int DecodeNode(int decode, int member = 0) const {
    return routers + decode * decode_members() + member;
  }
  int DecodeOf(int node) const { return (node - routers) / decode_members(); }
  int DecodeMemberOf(int node) const { return (node - routers) % decode_members(); }
  int DecodeStageOf(int node) const { return DecodeMemberOf(node) / decode_ranks; }
  TensorRank DecodeRankOf(int node) const {
    return {DecodeMemberOf(node) % decode_ranks, decode_ranks};
  }
  // Whether it is of a colocated chain, where IsDecode is true as well.
  bool IsColocated(int node) const { return IsDecode(node) && DecodeOf(node) >= decodes; }
  Role RoleOf(int node) const {
    return IsDecode(node) && !IsColocated(node) ? Role::kDecode : Role::kPrefill;
  }
  // The id of a service of several members, or of a colocated chain.
  std::string DecodeId(int node) const { return absl::StrCat("service-", DecodeOf(node)); }
  bool IsFollower(int node) const { return IsDecode(node) && DecodeMemberOf(node) > 0; }
  int members() const { return stages * ranks; }  // Per chain.
  int FirstMember() const { return routers + (decodes + colocated) * decode_members(); }
  int MemberNode(int chain, int member) const { return FirstMember() + chain * members() + member; }
  // The stage's rank 0.
  int StageNode(int chain, int stage) const { return MemberNode(chain, stage * ranks); }
  int ChainOf(int node) const { return (node - FirstMember()) / members(); }
  int MemberOf(int node) const { return (node - FirstMember()) % members(); }
  int StageOf(int node) const { return MemberOf(node) / ranks; }
  TensorRank RankOf(int node) const { return {MemberOf(node) % ranks, ranks}; }
  bool IsStranger(int node) const {
    return stranger && IsDecode(node) && DecodeOf(node) == decodes - 1;
  }
  // Whether it belongs to a decode service that fits and can be connected to, or to a colocated
  // chain.
  bool Serves(int node) const { return IsDecode(node) && !IsStranger(node) && !IsLonely(node); }
  // Only the last member of the service is cut off, which is enough.
  bool IsLonely(int node) const {
    return lonely && IsDecode(node) && DecodeOf(node) == DecodeOf(LonelyNode());
  }
  int LonelyNode() const {
    return lonely ? DecodeNode(decodes - (stranger ? 2 : 1), decode_members() - 1) : -1;
  }
  // Whether any stage or decode service has a group of ranks.
  bool has_groups() const { return ranks > 1 || decode_ranks > 1; }
  std::string InstanceId(const std::string& node_name, uint64_t incarnation) const {
    const size_t dash = node_name.rfind('-');
    return new_names ? absl::StrCat(node_name.substr(0, dash), "-", absl::Hex(incarnation & 0xffff),
                                    node_name.substr(dash))
                     : node_name;
  }
  int NodeCount() const { return FirstMember() + chains * members(); }

  // Uneven where it does not divide: the later stages take more.
  LayerRange StageLayers(int stage) const {
    return LayerRange{stage * layers / stages, (stage + 1) * layers / stages};
  }
  LayerRange DecodeLayers(int stage) const {
    return LayerRange{stage * layers / decode_stages, (stage + 1) * layers / decode_stages};
  }
  LayerRange DecodeLayersOf(int node) const { return DecodeLayers(DecodeStageOf(node)); }
  // The time that a simulated stage takes for a plan, without noise.
  StageCost CostOf(int stage) const;
  // As large as with one head, whatever the heads.
  KvLayout Layout() const {
    return KvLayout{layers, kv_heads, kRowBytes / 4 / kv_heads, page_size, 4};
  }
  // With the heads that a rank of a stage has, or one of a decode service.
  KvLayout RankLayout() const { return Layout().WithHeads(KvHeadsOf(kv_heads, {0, ranks}).size()); }
  KvLayout DecodeLayout() const {
    return Layout().WithHeads(KvHeadsOf(kv_heads, {0, decode_ranks}).size());
  }
  // With the layers that a member of a decode service has, too.
  KvLayout DecodeLayoutOf(int node) const {
    KvLayout layout = DecodeLayout();
    layout.layers = DecodeLayersOf(node).size();
    return layout;
  }
  // Pages of a decode member. A service uses as many as its smallest has, which is the last.
  int PagesOf(int decode_node) const {
    if (IsColocated(decode_node)) return decode_pages;
    return decode_pages + 3 * (decode_members() - 1 - DecodeMemberOf(decode_node));
  }
  // The heads that a rank of a stage and one of a decode service both have.
  IndexRange CommonHeads(int rank, int decode_rank) const {
    const IndexRange own = KvHeadsOf(kv_heads, {rank, ranks});
    const IndexRange theirs = KvHeadsOf(kv_heads, {decode_rank, decode_ranks});
    return {std::max(own.begin, theirs.begin), std::min(own.end, theirs.end)};
  }
  // Whether the one hands KV to the other. Where several of a stage have the same head, they share
  // the decode ranks that have it, neighbours those that are neighbours.
  bool WritesTo(int rank, int decode_rank) const {
    if (CommonHeads(rank, decode_rank).size() <= 0) return false;
    const int copies = std::max(1, ranks / kv_heads);
    const int copies_there = std::max(1, decode_ranks / kv_heads);
    return rank % copies == decode_rank % copies_there * copies / copies_there;
  }
  // The layers of both.
  static LayerRange CommonLayers(LayerRange one, LayerRange other) {
    return {std::max(one.begin, other.begin), std::min(one.end, other.end)};
  }
  // What a rank of a stage with these layers sends to a member of a decode service: the layers of
  // both; none if it sends nothing.
  LayerRange SentTo(LayerRange own, int rank, int decode_member) const {
    const LayerRange both = CommonLayers(own, DecodeLayers(decode_member / decode_ranks));
    const bool sends = both.size() > 0 && WritesTo(rank, decode_member % decode_ranks);
    return sends ? both : LayerRange{0, 0};
  }
  // To any of them.
  bool WritesKv(int rank) const {
    for (int decode_rank = 0; decode_rank < decode_ranks; ++decode_rank) {
      if (WritesTo(rank, decode_rank)) return true;
    }
    return false;
  }
  size_t PartBytes() const { return static_cast<size_t>(part_layers) * Layout().BytesPerLayer(); }
  // What a stage may have under way to one decode service.
  size_t WindowBytes() const { return 4 * PartBytes(); }
  static constexpr int kWindowMessages = 3;
  size_t MergedBytes(LayerRange stage_layers) const {
    return 2 * RankLayout().BandBytes(stage_layers);
  }
  // What the stage with the most layers ever has under way there.
  size_t UnderWayBytes() const {
    const LayerRange own = StageLayers(stages - 1);
    const size_t message_bytes =
        RankLayout().BandBytes(own) > PartBytes() ? PartBytes() : MergedBytes(own);
    return std::min(WindowBytes(), kWindowMessages * message_bytes);
  }
};

Topology DrawTopology(Random& random);
// Whether stages are several ranks, which three runs in ten have, and how many. Fewer stages then.
void DrawRanks(Random& random, Topology& topology);
// The same of decode services, which one run in four has, whatever the stages have.
void DrawDecodeRanks(Random& random, Topology& topology);
// Whether decode services are several stages, which one run in four has.
void DrawDecodeStages(Random& random, Topology& topology);
// Whether there is a colocated chain, which one run in four has.
void DrawColocated(Random& random, Topology& topology);

// Instance ids are "<role>-<node>", so that a name leads to its node.
inline int NodeOf(const std::string& instance_id) {
  const size_t dash = instance_id.rfind('-');
  int node = -1;
  if (dash == std::string::npos || !absl::SimpleAtoi(instance_id.substr(dash + 1), &node))
    return -1;
  return node;
}

}  // namespace baton::sim

#endif  // TESTS_SIM_TOPOLOGY_H_
