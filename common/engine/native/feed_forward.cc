#include "common/engine/native/feed_forward.h"

#include <algorithm>
#include <cmath>

namespace baton {
namespace {

size_t Floats(int64_t rows, int64_t columns) { return static_cast<size_t>(rows * columns); }

}  // namespace

void RouteToken(std::span<const float> scores, bool normalise, std::span<ExpertShare> chosen) {
  for (size_t rank = 0; rank < chosen.size(); ++rank) {
    const std::span<const ExpertShare> taken = chosen.first(rank);
    int best = -1;
    for (int expert = 0; expert < static_cast<int>(scores.size()); ++expert) {
      const bool is_taken = std::ranges::any_of(
          taken, [expert](const ExpertShare& share) { return share.expert == expert; });
      if (is_taken) continue;
      // The first one is taken even if its score is no number.
      if (best < 0 || scores[static_cast<size_t>(expert)] > scores[static_cast<size_t>(best)]) {
        best = expert;
      }
    }
    chosen[rank].expert = best;
  }
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

FeedForward::FeedForward(const kernels::KernelTable& kernels, const ModelConfig& sizes,
                         IndexRange experts)
    : kernels_(kernels),
      hidden_(sizes.hidden_size),
      eps_(static_cast<float>(sizes.rms_norm_eps)),
      experts_(sizes.experts),
      held_(experts) {
  const int columns = std::max(sizes.intermediate_size, experts_.inner);
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
  kernels_.silu_mul(gate_up_.data(), rows, columns, inner_.data());
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
    RouteToken(std::span(scores_).subspan(row * count, count), experts_.normalise,
               std::span(chosen_).subspan(row * active, active));
  }
  GroupByExpert(rows);
  std::fill_n(y, Floats(rows, hidden_), 0.0f);
  size_t begin = 0;
  for (size_t i = 0; i < block.experts.size(); ++i) {
    AddExpert(block.experts[i], std::span(by_expert_).subspan(begin, expert_ends_[i] - begin), y);
    begin = expert_ends_[i];
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
