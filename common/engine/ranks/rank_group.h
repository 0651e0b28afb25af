// The other tensor-parallel ranks, as the thread that computes needs them: sums of what each has
// computed in part, and the vocabulary's logits in one place. One per stage model; the communicator
// below it is one epoch's, so a new one is joined when the old one has ended.
//
// Every rank runs the same steps in the same order, and what is called here depends on a step's
// shape and the options alone, so all ranks submit the same collectives.
//
// Sums are taken in float32 whatever the weights are. Rejected: bfloat16 sums, which would halve
// the bytes and round every partial product once more, so that two ranks would be further from one
// than bfloat16 itself is.
#ifndef COMMON_ENGINE_RANKS_RANK_GROUP_H_
#define COMMON_ENGINE_RANKS_RANK_GROUP_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/collective/communicator.h"
#include "common/collective/pending.h"
#include "common/engine/ranks/row_parallel.h"
#include "common/types/tensor_rank.h"

namespace baton {

// One thread.
class RankGroup {
 public:
  // `hidden` is the width of the rows that are summed.
  RankGroup(TensorRank rank, const RowParallelOptions& options, int hidden)
      : rank_(rank), options_(options), hidden_(static_cast<size_t>(hidden)) {}

  bool alone() const { return rank_.alone(); }
  // Whether this rank's step gets logits.
  bool gathers_logits() const { return rank_.rank == 0; }

  // Takes a group that has formed, and with auto chunks measures it: `multiply(rows)` is one
  // projection of as many rows. InvalidArgument, naming both, for another rank's or a group of
  // another size; what the measurement's collectives end with.
  absl::Status Join(std::shared_ptr<Communicator> communicator,
                    const std::function<void(int rows)>& multiply);

  // Before a step's first call. FailedPrecondition where no group has been joined.
  absl::Status Begin(int tokens);
  // Ends the group for all ranks because this one's step has failed, and returns when nothing
  // touches this rank's memory any more.
  void Fail(const absl::Status& why);

  // Row-parallel sums. A chunk's rows of partial sums are written to Rows and sent on their way by
  // Reduce; Await returns when they are the whole sums. Between Reduce and Await of a chunk its
  // rows are the group's.
  std::span<const IndexRange> chunks() const { return chunks_; }
  float* Rows(int begin) { return &sums_[static_cast<size_t>(begin) * hidden_]; }
  void Reduce(size_t chunk);
  // The same of rows that lie elsewhere: float32, in memory that the communicator takes.
  void Reduce(size_t chunk, const TensorView& rows);
  absl::Status Await(size_t chunk);

  // `values` become the sums of all ranks'.
  absl::Status Sum(std::span<float> values);
  absl::Status Sum(const TensorView& tensor);  // In memory that the communicator takes.

  // `whole` becomes the ranks' parts, one behind the other.
  absl::Status GatherParts(const TensorView& part, const TensorView& whole);

  // `mine` is [rows, columns]; on rank 0 `all` becomes [rows, size * columns], by rank.
  absl::Status Gather(std::span<float> mine, int rows, std::span<float> all);

  const RowParallelCosts& costs() const { return costs_; }

 private:
  absl::Status Measure(const std::function<void(int rows)>& multiply);

  const TensorRank rank_;
  const RowParallelOptions options_;
  const size_t hidden_;
  std::shared_ptr<Communicator> communicator_;
  RowParallelCosts costs_;
  std::vector<IndexRange> chunks_;
  std::vector<Pending> pending_;  // By chunk.
  std::vector<float> sums_;       // [tokens, hidden]
  std::vector<float> received_;   // [size - 1, rows, columns]
};

}  // namespace baton

#endif  // COMMON_ENGINE_RANKS_RANK_GROUP_H_
