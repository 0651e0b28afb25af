// Which of the processes of a prefill chain, or of a decode service, each of its nodes runs:
// --nnodes and --node-rank, with SGLang's meaning. Pure.
#ifndef COMMON_CONFIG_NODE_SHARE_H_
#define COMMON_CONFIG_NODE_SHARE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/baton/v1/config.pb.h"

namespace baton::config {

// A process's place in its chain, or in its decode service.
struct StageRank {
  int64_t stage = 0;  // --pp-rank
  int64_t rank = 0;   // --tp-rank

  bool operator==(const StageRank&) const = default;
};

// Whether the options are of a node, which starts its share of a chain or a decode service, and not
// of one worker.
inline bool IsNode(const v1::Options& options) { return options.nnodes() > 0; }

// The places of this node, in their order in the chain: stage by stage, and rank by rank within
// one. Every place of the chain, or of the decode service, is one node's. Of one worker: its own
// place. The options have passed CheckNode.
std::vector<StageRank> PlacesHere(const v1::Options& options);

// Whether the three options make sense together and with the shape of what they share out.
// InvalidArgument with the option as field.
absl::Status CheckNode(const v1::Options& options);

// HOST:PORT of --dist-init-addr, which may be a host alone: to find the way there, not to connect
// to. InvalidArgument with the option as field.
absl::StatusOr<std::string> MeetingAddress(const std::string& dist_init_addr);

// The chain or decode service that --dist-init-addr names: the address with what no name may have
// replaced.
std::string GroupOfAddress(const std::string& dist_init_addr);

}  // namespace baton::config

#endif  // COMMON_CONFIG_NODE_SHARE_H_
