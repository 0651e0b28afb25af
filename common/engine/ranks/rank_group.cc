#include "common/engine/ranks/rank_group.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"

namespace baton {
namespace {

// Row counts of the measured products and sums: different enough to separate the cost of a row from
// that of a call.
constexpr std::array kMeasuredRows = {64, 512};
constexpr int kMeasurements = 3;

TensorView View(std::span<float> values) {
  return HostTensor(values, static_cast<int64_t>(values.size()));
}

// The nanoseconds of the fastest of a few calls.
template <typename Call>
absl::StatusOr<int64_t> Fastest(const Call& call) {
  int64_t best_us = INT64_MAX;
  for (int i = 0; i < kMeasurements; ++i) {
    const int64_t begun_us = NowUs();
    BATON_RETURN_IF_ERROR(call());
    best_us = std::min(best_us, NowUs() - begun_us);
  }
  return best_us * 1000;
}

// The cost of a call and of each of its rows, from two measurements.
struct Line {
  int64_t call_ns;
  int64_t row_ns;
};
Line Through(const std::array<int64_t, 2>& ns) {
  const int64_t rows = kMeasuredRows[1] - kMeasuredRows[0];
  const int64_t row_ns = std::max<int64_t>(0, (ns[1] - ns[0]) / rows);
  return {std::max<int64_t>(0, ns[0] - row_ns * kMeasuredRows[0]), row_ns};
}

}  // namespace

absl::Status RankGroup::Join(std::shared_ptr<Communicator> communicator,
                             const std::function<void(int rows)>& multiply) {
  const GroupDescription& group = communicator->group();
  if (group.size() != rank_.size || group.rank != rank_.rank) {
    return absl::InvalidArgumentError(
        absl::StrCat("the weights here are rank ", rank_.rank, " of ", rank_.size,
                     ", the group's are ", group.Describe(group.rank), " of ", group.size()));
  }
  communicator_ = std::move(communicator);
  return options_.chunks == 0 ? Measure(multiply) : absl::OkStatus();
}

// All ranks measure, since each takes part in the sums, but rank 0's numbers are used.
absl::Status RankGroup::Measure(const std::function<void(int rows)>& multiply) {
  std::array<int64_t, 2> matmul_ns{};
  std::array<int64_t, 2> reduce_ns{};
  for (size_t i = 0; i < kMeasuredRows.size(); ++i) {
    const int rows = kMeasuredRows[i];
    std::vector<float> sums(static_cast<size_t>(rows) * hidden_);
    BATON_ASSIGN_OR_RETURN(matmul_ns[i], Fastest([&] {
                             multiply(rows);
                             return absl::OkStatus();
                           }));
    BATON_ASSIGN_OR_RETURN(reduce_ns[i], Fastest([&] { return Sum(sums); }));
  }
  const Line matmul = Through(matmul_ns);
  const Line reduce = Through(reduce_ns);
  std::array<float, 4> costs = {
      static_cast<float>(matmul.call_ns), static_cast<float>(matmul.row_ns),
      static_cast<float>(reduce.call_ns), static_cast<float>(reduce.row_ns)};
  Pending told;
  communicator_->Broadcast(View(costs), 0, told.Add());
  BATON_RETURN_IF_ERROR(Annotate(told.Wait(), "telling the ranks what sums cost"));
  costs_ = {static_cast<int64_t>(costs[0]), static_cast<int64_t>(costs[1]),
            static_cast<int64_t>(costs[2]), static_cast<int64_t>(costs[3])};
  return absl::OkStatus();
}

absl::Status RankGroup::Begin(int tokens) {
  if (communicator_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", rank_.rank, " of ", rank_.size, " has joined no group yet"));
  }
  chunks_ = CutRows(tokens, RowParallelChunks(options_, costs_, rank_.size, tokens));
  pending_.resize(std::max(pending_.size(), chunks_.size()));
  sums_.resize(static_cast<size_t>(tokens) * hidden_);
  return absl::OkStatus();
}

void RankGroup::Fail(const absl::Status& why) {
  if (communicator_ == nullptr) return;
  communicator_->Abort(why);
  // What they end with is what has ended the group: `why`, or what came before it.
  for (Pending& pending : pending_) pending.Wait().IgnoreError();
}

void RankGroup::Reduce(size_t chunk) {
  const IndexRange rows = chunks_[chunk];
  const std::span<float> values(Rows(rows.begin), static_cast<size_t>(rows.size()) * hidden_);
  Reduce(chunk, View(values));
}

void RankGroup::Reduce(size_t chunk, const TensorView& rows) {
  communicator_->AllReduce(rows, pending_[chunk].Add());
}

absl::Status RankGroup::Await(size_t chunk) {
  return Annotate(pending_[chunk].Wait(), "summing a projection");
}

absl::Status RankGroup::Sum(std::span<float> values) { return Sum(View(values)); }

absl::Status RankGroup::Sum(const TensorView& tensor) {
  Pending pending;
  communicator_->AllReduce(tensor, pending.Add());
  return Annotate(pending.Wait(), "summing over the ranks");
}

absl::Status RankGroup::GatherParts(const TensorView& part, const TensorView& whole) {
  Pending pending;
  communicator_->AllGather(part, whole, pending.Add());
  return Annotate(pending.Wait(), "gathering activations");
}

absl::Status RankGroup::Gather(std::span<float> mine, int rows, std::span<float> all) {
  Pending pending;
  if (rank_.rank != 0) {
    communicator_->Send(View(mine), 0, pending.Add());
    return Annotate(pending.Wait(), "sending logits");
  }
  const size_t others = static_cast<size_t>(rank_.size) - 1;
  received_.resize(others * mine.size());
  for (size_t i = 0; i < others; ++i) {
    communicator_->Receive(View(std::span(received_).subspan(i * mine.size(), mine.size())),
                           static_cast<int>(i) + 1, pending.Add());
  }
  BATON_RETURN_IF_ERROR(Annotate(pending.Wait(), "receiving logits"));
  const size_t columns = mine.size() / static_cast<size_t>(rows);
  const size_t width = columns * static_cast<size_t>(rank_.size);
  for (size_t rank = 0; rank <= others; ++rank) {
    const float* from = rank == 0 ? mine.data() : &received_[(rank - 1) * mine.size()];
    for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
      std::copy_n(from + row * columns, columns, &all[row * width + rank * columns]);
    }
  }
  return absl::OkStatus();
}

}  // namespace baton
