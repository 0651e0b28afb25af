// What a worker says of itself when it registers, and with its heartbeats.
#ifndef SERVICES_ROUTER_CORE_WORKER_INFO_H_
#define SERVICES_ROUTER_CORE_WORKER_INFO_H_

#include <compare>
#include <cstdint>
#include <string>

#include "common/types/instance.h"
#include "common/types/kv_layout.h"

namespace baton::router {

// What the ranks of a stage or of a decode service must do alike: they submit the same collectives,
// and so must cut steps in the same places. Nothing where these are one process.
struct RankAgreement {
  int row_parallel_chunks = 1;  // 0: by measured times.
  int row_parallel_threshold = 0;
  bool sends_slices = false;  // Chains only.
  bool operator==(const RankAgreement&) const = default;
};

// A grid is the places of one chain or of one decode service, each for one process.
struct GridName {
  Role role = Role::kPrefill;
  bool alone = false;  // A decode service of one process.
  std::string id;      // The chain's or the decode service's; of one alone the process's.
  auto operator<=>(const GridName&) const = default;
};

// A worker's place in its grid.
struct GridPlace {
  GridName grid;
  int place = 0;  // Below `places`, the size of the grid.
  int places = 1;
  bool decodes = false;  // The grid is a colocated chain.
};

struct WorkerInfo {
  InstanceRef instance;
  Role role = Role::kPrefill;
  std::string grpc_address;
  std::string data_address;
  LayerRange layers;
  std::string chain_id;  // Prefill only.
  int pp_rank = 0;       // Its stage.
  int pp_size = 1;
  std::string decode_id;   // Decode services of several processes only: which one it is of.
  TensorRank tensor_rank;  // Within its stage or decode service.
  RankAgreement agreed;
  bool decodes = false;  // Prefill only: its chain is colocated, it decodes what it has read.
  ModelFingerprint fingerprint;
  int page_count = 0;            // > 0
  int max_running_requests = 0;  // > 0
  int max_context_tokens = 0;    // > 0
  // Decode only: new tokens of a request that have pages from the beginning. 0: all.
  int reserved_decode_tokens = 0;
  bool operator==(const WorkerInfo&) const = default;

  GridName grid() const {
    if (role == Role::kPrefill) return {role, false, chain_id};
    return {role, places() == 1, places() == 1 ? instance.id : decode_id};
  }
  // A grid's places are counted stage by stage, each one's ranks in order.
  int places() const { return pp_size * tensor_rank.size; }
  int place() const { return pp_rank * tensor_rank.size + tensor_rank.rank; }
  GridPlace grid_place() const { return {grid(), place(), places(), decodes}; }
  int64_t capacity_tokens() const { return int64_t{page_count} * fingerprint.kv_layout.page_size; }
};

struct WorkerLoad {
  int running_requests = 0;
  int queued_requests = 0;
  int64_t queued_tokens = 0;
  int free_pages = 0;
  int quarantined_pages = 0;
  bool operator==(const WorkerLoad&) const = default;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_WORKER_INFO_H_
