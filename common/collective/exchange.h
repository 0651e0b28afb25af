// How a collective is made of blocks that pairs of ranks exchange, and its progress.
//
// Every rank exchanges with every other directly. So a rank knows which rank's data is missing,
// unlike in a ring, and each element is summed in rank order, by one rank or by all. It costs no
// more bytes than a ring: a long all-reduce is a reduce-scatter followed by an all-gather, 2 (n -
// 1) / n of the tensor each way (the lower bound; Patarasuk and Yuan, "Bandwidth optimal all-reduce
// algorithms for clusters of workstations", 2009), in two steps instead of 2 (n - 1). A short one,
// or one of two ranks, sends the whole tensor to all ranks in a single step: fewer waits, the same
// sums. Groups are small, a stage's ranks, so a root sends to each rank itself.
#ifndef COMMON_COLLECTIVE_EXCHANGE_H_
#define COMMON_COLLECTIVE_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/collective/communicator.h"
#include "common/collective/rank_order_sum.h"

namespace baton::collective {

// The bytes that one step of a collective exchanges; indexed by rank, this rank's own entries
// empty.
struct Step {
  std::vector<std::span<const std::byte>> out;  // To each rank.
  std::vector<std::span<std::byte>> in;         // From each rank, stored as received.
  // Or from each rank, summed with `own`: all of the size of `sum`.
  std::span<const std::byte> own;
  std::span<std::byte> sum;
  bool sum_overwrites_out = false;  // Then a sum is stored only after `out` has been sent there.
};

// An all-reduce of at most so many bytes takes one step with any number of ranks.
inline constexpr size_t kWholeExchangeBytesMax = size_t{64} << 10;

// The steps of a valid collective. Work that needs no other rank is done at once.
std::vector<Step> BeginExchange(const Collective& collective, int rank, int size);

// One step in progress, in blocks of `block_bytes` (a multiple of every element's size, equal on
// all ranks).
class StepRun {
 public:
  StepRun(Step step, ElementType type, int rank, size_t block_bytes);

  // The next block for `peer`, and its offset in what `peer` receives; nullopt if all is sent.
  struct Block {
    std::span<const std::byte> bytes;
    uint64_t offset;
  };
  std::optional<Block> NextOut(int peer) const;
  void Sent(int peer) { sent_[peer] += NextOut(peer)->bytes.size(); }

  // Whether `peer`'s next block can be taken now; its offset and its required length.
  bool Takes(int peer) const;
  uint64_t InOffset(int peer) const { return taken_[peer]; }
  size_t InBytes(int peer) const;
  void Take(int peer, std::span<const std::byte> block);

  // Whether data from `peer` is still missing, whether or not it could be taken now.
  bool Owes(int peer) const { return taken_[peer] < InTotal(peer); }
  bool finished() const;

  // Adds this rank's own part and stores complete sums, as far as possible now. Call it once at the
  // beginning, and after Take and Sent.
  void Settle();

 private:
  size_t InTotal(int peer) const {
    return step_.sum.empty() || peer == rank_ ? step_.in[peer].size() : step_.sum.size();
  }
  size_t BlockAt(size_t offset, size_t total) const;
  bool SentUpTo(size_t end) const;

  const Step step_;
  const ElementType type_;
  const int rank_;
  const size_t block_bytes_;
  std::vector<size_t> sent_;
  std::vector<size_t> taken_;
  RankOrderSum adder_;
  size_t summed_ = 0;    // The bytes of `sum` that are stored.
  int next_to_add_ = 0;  // The rank whose part of the block at `summed_` comes next.
};

}  // namespace baton::collective

#endif  // COMMON_COLLECTIVE_EXCHANGE_H_
