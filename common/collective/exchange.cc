#include "common/collective/exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"

namespace baton::collective {
namespace {

void CopyUnlessSame(std::span<const std::byte> from, std::span<std::byte> to) {
  if (from.data() != to.data()) std::memmove(to.data(), from.data(), to.size());
}

// Part `index` of `parts` of a tensor, in whole elements; sizes differ by at most one element.
std::span<std::byte> Part(std::span<std::byte> tensor, ElementType type, int index, int parts) {
  const size_t element = ElementBytes(type);
  const size_t count = tensor.size() / element;
  const auto at = [&](int part) {
    const auto p = static_cast<size_t>(part);
    const auto n = static_cast<size_t>(parts);
    return (count / n * p + count % n * p / n) * element;
  };
  return tensor.subspan(at(index), at(index + 1) - at(index));
}

class Builder {
 public:
  Builder(const Collective& collective, int rank, int size)
      : type_(collective.input.type), rank_(rank), size_(size) {
    if (collective.kind != CollectiveKind::kReceive) input_ = collective.input.memory.Host();
    if (collective.kind != CollectiveKind::kSend) output_ = collective.output.memory.Host();
  }

  std::vector<Step> AllReduce() const {
    if (size_ == 1) return {};
    if (size_ == 2 || input_.size() <= kWholeExchangeBytesMax) {
      Step whole = NewStep();
      for (int peer = 0; peer < size_; ++peer) {
        if (peer != rank_) whole.out[peer] = input_;
      }
      whole.own = input_;
      whole.sum = output_;
      whole.sum_overwrites_out = true;
      return {std::move(whole)};
    }
    const auto part = [&](int index) { return Part(output_, type_, index, size_); };
    Step reduce = NewStep();
    Step gather = NewStep();
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      reduce.out[peer] = part(peer);
      gather.out[peer] = part(rank_);
      gather.in[peer] = part(peer);
    }
    reduce.own = reduce.sum = part(rank_);
    return {std::move(reduce), std::move(gather)};
  }

  std::vector<Step> AllGather() const {
    const auto part = [&](int index) {
      return output_.subspan(static_cast<size_t>(index) * input_.size(), input_.size());
    };
    CopyUnlessSame(input_, part(rank_));
    Step step = NewStep();
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      step.out[peer] = input_;
      step.in[peer] = part(peer);
    }
    return {std::move(step)};
  }

  std::vector<Step> FromRoot(int root) const {
    Step step = NewStep();
    for (int peer = 0; rank_ == root && peer < size_; ++peer) {
      if (peer != rank_) step.out[peer] = input_;
    }
    if (rank_ != root) step.in[root] = output_;
    return {std::move(step)};
  }

  std::vector<Step> SendTo(int peer) const {
    Step step = NewStep();
    step.out[peer] = input_;
    return {std::move(step)};
  }

 private:
  Step NewStep() const {
    Step step;
    step.out.resize(static_cast<size_t>(size_));
    step.in.resize(static_cast<size_t>(size_));
    return step;
  }

  const ElementType type_;
  const int rank_;
  const int size_;
  std::span<std::byte> input_;
  std::span<std::byte> output_;
};

}  // namespace

std::vector<Step> BeginExchange(const Collective& collective, int rank, int size) {
  const Builder builder(collective, rank, size);
  switch (collective.kind) {
    case CollectiveKind::kAllReduce:
      return builder.AllReduce();
    case CollectiveKind::kAllGather:
      return builder.AllGather();
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReceive:
      return builder.FromRoot(collective.peer);
    case CollectiveKind::kSend:
      return builder.SendTo(collective.peer);
  }
  return {};
}

StepRun::StepRun(Step step, ElementType type, int rank, size_t block_bytes)
    : step_(std::move(step)),
      type_(type),
      rank_(rank),
      block_bytes_(block_bytes),
      sent_(step_.out.size()),
      taken_(step_.in.size()) {
  Settle();
}

size_t StepRun::BlockAt(size_t offset, size_t total) const {
  return std::min(block_bytes_, total - offset);
}

std::optional<StepRun::Block> StepRun::NextOut(int peer) const {
  const std::span<const std::byte> out = step_.out[peer];
  const size_t offset = sent_[peer];
  if (offset == out.size()) return std::nullopt;
  return Block{out.subspan(offset, BlockAt(offset, out.size())), offset};
}

bool StepRun::Takes(int peer) const {
  if (!Owes(peer)) return false;
  // The ranks of a block are summed in order, so a block that is early waits.
  return step_.sum.empty() || peer == next_to_add_;
}

size_t StepRun::InBytes(int peer) const { return BlockAt(taken_[peer], InTotal(peer)); }

void StepRun::Take(int peer, std::span<const std::byte> block) {
  BATON_CHECK(Takes(peer) && block.size() == InBytes(peer)) << block.size() << " bytes of " << peer;
  if (step_.sum.empty()) {
    std::memcpy(step_.in[peer].data() + taken_[peer], block.data(), block.size());
  } else {
    adder_.Add(type_, block);
    ++next_to_add_;
  }
  taken_[peer] += block.size();
  Settle();
}

bool StepRun::SentUpTo(size_t end) const {
  for (size_t peer = 0; peer < sent_.size(); ++peer) {
    if (!step_.out[peer].empty() && sent_[peer] < end) return false;
  }
  return true;
}

void StepRun::Settle() {
  const auto size = static_cast<int>(step_.in.size());
  while (summed_ < step_.sum.size()) {
    const size_t bytes = BlockAt(summed_, step_.sum.size());
    if (next_to_add_ == rank_) {
      adder_.Add(type_, step_.own.subspan(summed_, bytes));
      ++next_to_add_;
    }
    if (next_to_add_ < size) return;
    if (step_.sum_overwrites_out && !SentUpTo(summed_ + bytes)) return;
    adder_.Store(type_, step_.sum.subspan(summed_, bytes));
    summed_ += bytes;
    next_to_add_ = 0;
  }
}

bool StepRun::finished() const {
  for (size_t peer = 0; peer < sent_.size(); ++peer) {
    if (sent_[peer] < step_.out[peer].size() || Owes(static_cast<int>(peer))) return false;
  }
  return summed_ == step_.sum.size();
}

}  // namespace baton::collective
