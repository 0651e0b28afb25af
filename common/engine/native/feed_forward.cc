#include "common/engine/native/feed_forward.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/engine/native/row_place.h"

namespace baton {
namespace {

// Fills `chosen` with the indexes of the highest values, as ExpertRouter::Route says.
void ChooseBest(std::span<const float> values, std::span<ExpertShare> chosen) {
  for (size_t rank = 0; rank < chosen.size(); ++rank) {
    const std::span<const ExpertShare> taken = chosen.first(rank);
    int best = -1;
    for (int index = 0; index < static_cast<int>(values.size()); ++index) {
      const bool is_taken = std::ranges::any_of(
          taken, [index](const ExpertShare& share) { return share.expert == index; });
      if (is_taken) continue;
      // The first one is taken even if its value is no number.
      if (best < 0 || values[static_cast<size_t>(index)] > values[static_cast<size_t>(best)]) {
        best = index;
      }
    }
    chosen[rank].expert = best;
  }
}

void WeighBySoftmax(std::span<const float> scores, bool normalise, std::span<ExpertShare> chosen) {
  const auto score_of = [&](int expert) { return scores[static_cast<size_t>(expert)]; };
  const float max = score_of(chosen[0].expert);
  float sum = 0;
  for (ExpertShare& share : chosen) {
    share.weight = std::exp(score_of(share.expert) - max);
    if (normalise) sum += share.weight;
  }
  if (!normalise) {
    for (const float score : scores) sum += std::exp(score - max);
  }
  for (ExpertShare& share : chosen) share.weight /= sum;
}

float Sigmoid(float score) { return 1 / (1 + std::exp(-score)); }

void WeighBySigmoid(std::span<const float> scores, bool normalise, std::span<ExpertShare> chosen) {
  constexpr float kTiny = 1e-20f;  // All scores of the chosen may be 0.
  float sum = kTiny;
  for (ExpertShare& share : chosen) {
    share.weight = Sigmoid(scores[static_cast<size_t>(share.expert)]);
    sum += share.weight;
  }
  if (!normalise) return;
  for (ExpertShare& share : chosen) share.weight /= sum;
}

}  // namespace

ExpertRouter::ExpertRouter(const Experts& experts) : experts_(experts) {
  merits_.resize(static_cast<size_t>(experts.count));
  group_merits_.resize(static_cast<size_t>(experts.groups));
  groups_.resize(static_cast<size_t>(experts.groups_kept));
}

void ExpertRouter::Route(std::span<const float> scores, std::span<const float> bias,
                         std::span<ExpertShare> chosen) {
  const bool sigmoid = experts_.score == ExpertScore::kSigmoid;
  std::span<const float> merits = scores;
  if (sigmoid || experts_.groups > experts_.groups_kept) {
    for (size_t i = 0; i < merits_.size(); ++i) {
      merits_[i] = sigmoid ? Sigmoid(scores[i]) + (bias.empty() ? 0 : bias[i]) : scores[i];
    }
    KeepGroups(merits_);
    merits = merits_;
  }
  ChooseBest(merits, chosen);
  if (sigmoid) {
    WeighBySigmoid(scores, experts_.normalise, chosen);
  } else {
    WeighBySoftmax(scores, experts_.normalise, chosen);
  }
  if (experts_.scaling == 1) return;
  for (ExpertShare& share : chosen) share.weight *= static_cast<float>(experts_.scaling);
}

// Experts of other groups become -infinity. A softmax keeps the order of the scores, so that they
// may stand for it.
void ExpertRouter::KeepGroups(std::span<float> merits) {
  if (experts_.groups == experts_.groups_kept) return;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const size_t of_group = merits.size() / group_merits_.size();
  for (size_t group = 0; group < group_merits_.size(); ++group) {
    float best = -kInfinity;
    float second = -kInfinity;
    for (const float merit : merits.subspan(group * of_group, of_group)) {
      if (merit > best) {
        second = best;
        best = merit;
      } else {
        second = std::max(second, merit);
      }
    }
    group_merits_[group] = experts_.group_score == GroupScore::kSumOfTwo ? best + second : best;
  }
  ChooseBest(group_merits_, groups_);
  for (size_t group = 0; group < group_merits_.size(); ++group) {
    const bool kept = std::ranges::any_of(
        groups_, [&](const ExpertShare& one) { return one.expert == static_cast<int>(group); });
    if (!kept) std::ranges::fill(merits.subspan(group * of_group, of_group), -kInfinity);
  }
}

FeedForward::FeedForward(const kernels::KernelTable& kernels, const ModelConfig& sizes,
                         IndexRange experts)
    : kernels_(kernels),
      gate_(sizes.activation == Activation::kGeluTanh ? kernels.gelu_mul : kernels.silu_mul),
      hidden_(sizes.hidden_size),
      eps_(static_cast<float>(sizes.rms_norm_eps)),
      experts_(sizes.experts),
      held_(experts),
      router_(experts_) {
  const int columns = std::max({sizes.intermediate_size, experts_.inner, experts_.shared_inner});
  normed_.resize(Floats(kRowBlock, hidden_));
  gate_up_.resize(Floats(kRowBlock, 2 * int64_t{columns}));
  inner_.resize(Floats(kRowBlock, columns));
  if (experts_.count == 0) return;
  gathered_.resize(Floats(kRowBlock, hidden_));
  added_.resize(Floats(kRowBlock, hidden_));
  expert_ends_.resize(static_cast<size_t>(held_.size()));
}

void FeedForward::Apply(const LayerBlock& block, const float* x, int rows, float* y) {
  normed_.resize(std::max(normed_.size(), Floats(rows, hidden_)));
  kernels_.rms_norm(x, block.post_attention_norm.data(), eps_, rows, hidden_, normed_.data());
  if (block.sparse) {
    Sparse(block, rows, y);
  } else {
    Gated(block.mlp, normed_.data(), rows, y);
  }
}

void FeedForward::Gated(const GatedBlock& block, const float* x, int rows, float* y) {
  const int columns = block.down->inputs();
  block.gate_up->Apply(x, rows, gate_up_.data());
  if (!block.gate_up_bias.empty()) {
    kernels_.add_bias(block.gate_up_bias.data(), rows, 2 * columns, gate_up_.data());
  }
  gate_(gate_up_.data(), rows, columns, inner_.data());
  block.down->Apply(inner_.data(), rows, y);
  if (!block.down_bias.empty()) kernels_.add_bias(block.down_bias.data(), rows, hidden_, y);
}

void FeedForward::Sparse(const LayerBlock& block, int rows, float* y) {
  const auto count = static_cast<size_t>(experts_.count);
  const auto active = static_cast<size_t>(experts_.active);
  scores_.resize(std::max(scores_.size(), Floats(rows, experts_.count)));
  chosen_.resize(static_cast<size_t>(rows) * active);
  block.router->Apply(normed_.data(), rows, scores_.data());
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    router_.Route(std::span(scores_).subspan(row * count, count), block.router_bias,
                  std::span(chosen_).subspan(row * active, active));
  }
  GroupByExpert(rows);
  std::fill_n(y, Floats(rows, hidden_), 0.0f);
  size_t begin = 0;
  for (size_t i = 0; i < block.experts.size(); ++i) {
    AddExpert(block.experts[i], std::span(by_expert_).subspan(begin, expert_ends_[i] - begin), y);
    begin = expert_ends_[i];
  }
  if (block.shared.has_value()) AddShared(*block.shared, rows, y);
}

void FeedForward::AddShared(const GatedBlock& shared, int rows, float* y) {
  for (int begin = 0; begin < rows; begin += kRowBlock) {
    const int count = std::min(kRowBlock, rows - begin);
    Gated(shared, &normed_[Floats(begin, hidden_)], count, added_.data());
    kernels_.add(added_.data(), Floats(count, hidden_), y + Floats(begin, hidden_));
  }
}

void FeedForward::GroupByExpert(int rows) {
  std::ranges::fill(expert_ends_, 0);
  const auto place = [this](const ExpertShare& share) {
    return static_cast<size_t>(share.expert - held_.begin);
  };
  size_t total = 0;
  for (const ExpertShare& share : chosen_) {
    if (!held_.Contains(share.expert)) continue;
    ++expert_ends_[place(share)];
    ++total;
  }
  // Where each one's rows begin; each row moves it, to where they end at last.
  size_t begin = 0;
  for (size_t& end : expert_ends_) {
    const size_t size = end;
    end = begin;
    begin += size;
  }
  by_expert_.resize(total);
  const auto active = static_cast<size_t>(experts_.active);
  for (int row = 0; row < rows; ++row) {
    for (const ExpertShare& share :
         std::span(chosen_).subspan(static_cast<size_t>(row) * active, active)) {
      if (held_.Contains(share.expert))
        by_expert_[expert_ends_[place(share)]++] = {row, share.weight};
    }
  }
}

void FeedForward::AddExpert(const GatedBlock& expert, std::span<const Routed> routed, float* y) {
  const auto hidden = static_cast<size_t>(hidden_);
  while (!routed.empty()) {
    const auto part = routed.first(std::min<size_t>(routed.size(), kRowBlock));
    routed = routed.subspan(part.size());
    float* to = gathered_.data();
    for (const Routed& one : part) {
      to = std::copy_n(&normed_[Floats(one.row, hidden_)], hidden, to);
    }
    Gated(expert, gathered_.data(), static_cast<int>(part.size()), added_.data());
    const float* from = added_.data();
    for (const Routed& one : part) {
      kernels_.add_scaled(from, one.weight, hidden, y + Floats(one.row, hidden_));
      from += hidden;
    }
  }
}

}  // namespace baton
