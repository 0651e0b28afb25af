// The two stages beside this one in an epoch: of each, the rank that is this rank's counterpart,
// and the endpoint to it that stood when the epoch began. An endpoint belongs to one connection: a
// neighbour that was lost and comes back is connected anew, and nothing that is sent to the old
// endpoint would reach it. So an epoch begins when both endpoints stand, and ends when one does not
// any more, even if the process at its other end lives.
//
// Rejected: to go on over the new endpoint. What was under way to the old one is lost, and
// activations, credits and reports would have to be told apart by more than their epoch.
#ifndef SERVICES_PREFILL_CORE_NEIGHBOURS_H_
#define SERVICES_PREFILL_CORE_NEIGHBOURS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types/instance.h"
#include "services/links/core/hello.h"

namespace baton::prefill {

struct Neighbour {
  uint64_t endpoint = 0;  // The transport's number: never 0, never used again.
  InstanceRef instance;   // Named and blamed when what is sent to it fails.
};

// Today's endpoint to one incarnation of a peer; nullopt: it is not connected.
using FindEndpoint = std::function<std::optional<uint64_t>(const InstanceRef&)>;

class Neighbours {
 public:
  explicit Neighbours(int stage, TensorRank rank = {})
      : member_(stage * rank.size + rank.rank), ranks_(rank.size) {}

  // Begins an epoch between two. UNAVAILABLE says why that can't be yet: work of the last one goes
  // on (not `quiet`), or a neighbour is not connected.
  absl::Status Begin(const links::Hello& hello, bool quiet, const FindEndpoint& find);
  void End();
  // To be asked when endpoints have changed. An error, which names the neighbour, ends the epoch.
  absl::Status Check(const FindEndpoint& find) const;

  // In the current epoch.
  const std::optional<Neighbour>& previous() const { return previous_; }  // None on stage 0.
  const std::optional<Neighbour>& next() const { return next_; }          // None on the last stage.

 private:
  static absl::StatusOr<std::optional<Neighbour>> FindIn(const links::Hello& hello, int member,
                                                         const FindEndpoint& find);

  const int member_;
  const int ranks_;
  std::optional<Neighbour> previous_;
  std::optional<Neighbour> next_;
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_CORE_NEIGHBOURS_H_
