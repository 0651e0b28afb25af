// Workers and pairs of a four-layer model for the tests of this package.
#ifndef SERVICES_ROUTER_CORE_TEST_CLUSTER_H_
#define SERVICES_ROUTER_CORE_TEST_CLUSTER_H_

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "services/router/core/membership.h"

namespace baton::router {

inline constexpr int kTestLayers = 4;

inline WorkerInfo TestWorker(const std::string& id, LayerRange layers) {
  WorkerInfo worker;
  worker.instance = {id, 1};
  worker.grpc_address = id + ":1";
  worker.data_address = "data-" + id;
  worker.layers = layers;
  worker.fingerprint.config_hash = 0xc0;
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    worker.fingerprint.layer_hashes[layer] = 0x100 + static_cast<uint64_t>(layer);
  }
  if (layers.begin == 0) worker.fingerprint.embedding_hash = 0xe0;
  if (layers.end == kTestLayers) worker.fingerprint.head_hash = 0xe1;
  worker.fingerprint.dtype = "float32";
  worker.fingerprint.kv_layout = {kTestLayers, 2, 8, 16, 4};
  worker.fingerprint.protocol_version = kProtocolVersion;
  worker.fingerprint.oldest_protocol_version = kOldestProtocolVersion;
  worker.page_count = 64;  // 1024 tokens.
  worker.max_running_requests = 8;
  worker.max_context_tokens = 1024;
  return worker;
}

// Stage `rank` of `size`, with an even share of the layers; named like "c0-1".
inline WorkerInfo TestStage(const std::string& chain, int rank, int size) {
  const int share = kTestLayers / size;
  WorkerInfo worker =
      TestWorker(chain + "-" + std::to_string(rank),
                 {rank * share, rank + 1 == size ? kTestLayers : (rank + 1) * share});
  worker.role = Role::kPrefill;
  worker.chain_id = chain;
  worker.pp_rank = rank;
  worker.pp_size = size;
  return worker;
}

// The same of a chain that also decodes.
inline WorkerInfo TestColocated(const std::string& chain, int rank, int size) {
  WorkerInfo worker = TestStage(chain, rank, size);
  worker.decodes = true;
  return worker;
}

inline WorkerInfo TestDecode(const std::string& id) {
  WorkerInfo worker = TestWorker(id, {0, kTestLayers});
  worker.role = Role::kDecode;
  return worker;
}

inline constexpr RankAgreement kTestAgreement{
    .row_parallel_chunks = 4, .row_parallel_threshold = 8192, .sends_slices = true};

// Rank `rank` of `ranks` of a stage of two of chain "c0"; named like "c0-1-0".
inline WorkerInfo TestStageRank(int stage, int rank, int ranks = 2) {
  WorkerInfo worker = TestStage("c0", stage, 2);
  worker.instance.id += "-" + std::to_string(rank);
  worker.tensor_rank = {rank, ranks};
  worker.agreed = kTestAgreement;
  return worker;
}

// Rank `rank` of `ranks` of a decode service; named like "d0-1".
inline WorkerInfo TestDecodeRank(int rank, int ranks = 2, const std::string& id = "0") {
  WorkerInfo worker = TestDecode("d" + id + "-" + std::to_string(rank));
  worker.decode_id = id;
  worker.tensor_rank = {rank, ranks};
  worker.agreed = kTestAgreement;
  return worker;
}

// Stage `stage` of two of a decode service; named like "d0-1".
inline WorkerInfo TestDecodeStage(int stage, const std::string& id = "0") {
  WorkerInfo worker = TestWorker("d" + id + "-" + std::to_string(stage),
                                 {stage * kTestLayers / 2, (stage + 1) * kTestLayers / 2});
  worker.role = Role::kDecode;
  worker.decode_id = id;
  worker.pp_rank = stage;
  worker.pp_size = 2;
  return worker;
}

// The same worker with the weights of another model, and under another name.
inline WorkerInfo WithOtherWeights(WorkerInfo worker) {
  for (auto& [layer, hash] : worker.fingerprint.layer_hashes) hash += 0xf00;
  return worker;
}
inline WorkerInfo Named(WorkerInfo worker, const std::string& id) {
  worker.instance.id = id;
  return worker;
}

inline std::set<std::string> MembersOf(const Membership& membership) {
  std::set<std::string> names;
  for (const Worker& member : membership.Workers()) names.insert(member.info.instance.id);
  return names;
}
inline std::set<std::string> RefusedBy(const Membership& membership) {
  std::set<std::string> names;
  for (const auto& [id, applicant] : membership.applicants()) names.insert(id);
  return names;
}

// What a member's heartbeat says in `linked` once its epoch links all members of its chain or
// decode service: nothing, unless it speaks for several processes.
inline std::vector<uint64_t> LinkedBy(const Membership& membership, const InstanceRef& instance) {
  std::vector<uint64_t> linked;
  const Worker* speaker = membership.Find(instance);
  if (speaker == nullptr || speaker->info.place() != 0 || speaker->info.places() == 1) {
    return linked;
  }
  for (const WorkerInfo& member : membership.ListFor(*speaker)) {
    if (member.grid() == speaker->info.grid()) linked.push_back(member.instance.incarnation);
  }
  return linked;
}

// The process of that name of a pair below. Each has another incarnation.
inline InstanceRef PairProcess(const std::string& id) {
  return {id, std::hash<std::string>()(id) | 1};
}

// A chain of one stage and a decode service, for a thousand tokens or two.
inline Pair TestPair(const std::string& chain, const std::string& decode) {
  Pair pair;
  pair.chain.chain_id = chain;
  pair.chain.stage0 = PairProcess(chain + "-0");
  pair.chain.stages = {{pair.chain.stage0, {0, kTestLayers}}};
  pair.chain.max_prompt_tokens = 1000;
  pair.chain.capacity_tokens = 1000;
  pair.decode = PairProcess(decode);
  pair.decode_capacity_tokens = 2000;
  pair.max_context_tokens = 1500;
  pair.decode_slots = 4;
  return pair;
}

// A colocated chain of one stage, of 100 tokens more than the chain above.
inline Pair TestColocatedPair(const std::string& chain) {
  Pair pair = TestPair(chain, "");
  pair.decode = pair.chain.stage0;
  pair.chain.max_prompt_tokens = pair.chain.capacity_tokens = 1100;
  pair.decode_capacity_tokens = pair.max_context_tokens = 1100;
  return pair;
}

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_TEST_CLUSTER_H_
