// What a stage model needs of the other tensor-parallel ranks: sums of partial results, and the
// gathered logits. There is one RankGroup per stage model. A communicator lasts one epoch, so the
// model joins a new one when the old one has ended.
//
// Every rank runs the same steps in the same order, and the calls here depend only on a step's
// shape and the options, so all ranks submit the same collectives.
//
// Sums are float32, whatever the type of the weights. Rejected: bfloat16 sums. They would halve the
// bytes but round every partial product once more, so that two ranks would differ from one by more
// than bfloat16 itself does.
#ifndef COMMON_ENGINE_RANKS_RANK_GROUP_H_
#define COMMON_ENGINE_RANKS_RANK_GROUP_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/collective/communicator.h"
#include "common/engine/ranks/row_parallel.h"
#include "common/types/instance.h"

namespace baton {

// One thread.
class RankGroup {
 public:
  // `hidden` is the width of the rows that are summed.
  RankGroup(TensorRank rank, const RowParallelOptions& options, int hidden)
      : rank_(rank), options_(options), hidden_(static_cast<size_t>(hidden)) {}

  bool alone() const { return rank_.alone(); }
  int size() const { return rank_.size; }
  // Whether this rank gets the logits.

  // Takes a group that has formed. With auto chunks it measures the group: `multiply(rows)`
  // computes one projection of so many rows. InvalidArgument names both groups if the rank or the
  // size differs; otherwise the error of the measurement's collectives.
  absl::Status Join(std::shared_ptr<Communicator> communicator,
                    const std::function<void(int rows)>& multiply);

  // Call it before the other calls of a step. FailedPrecondition if no group has been joined.
  absl::Status Begin(int tokens);
  // Ends the group for all ranks because this rank's step has failed. Returns when the group no
  // longer touches this rank's memory.
  void Fail(const absl::Status& why);

  // Row-parallel sums. The caller writes a chunk's partial sums to Rows, starts the sum with
  // Reduce, and Await returns when the rows hold the sums over all ranks. Between Reduce and Await
  // the group uses the chunk's rows.
  std::span<const IndexRange> chunks() const { return chunks_; }
  float* Rows(int begin) { return &sums_[static_cast<size_t>(begin) * hidden_]; }
  void Reduce(size_t chunk);
  // The same for rows elsewhere: float32, in memory that the communicator accepts.
  void Reduce(size_t chunk, const TensorView& rows);
  absl::Status Await(size_t chunk);

  // Replaces `values` by their sums over all ranks.
  absl::Status Sum(std::span<float> values);
  absl::Status Sum(const TensorView& tensor);  // In memory that the communicator accepts.

  // `whole` becomes the concatenation of all ranks' `part`.
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
