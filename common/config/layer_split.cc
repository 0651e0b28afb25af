#include "common/config/layer_split.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace baton::config {
namespace {

// Far above any model; keeps sums from overflowing.
constexpr int64_t kMaxLayers = 65536;
constexpr double kEqual = 0.05;  // Share of measured times; learned times are no more exact.

std::vector<int64_t> EvenShares(int64_t layers, int64_t pp_size) {
  std::vector<int64_t> shares(pp_size, layers / pp_size);
  const int64_t larger = layers % pp_size;
  for (int64_t stage = pp_size - larger; stage < pp_size; ++stage) ++shares[stage];
  return shares;
}

// What differs by less than times are measured to does not count.
void MakeEqual(std::vector<std::vector<double>>& layer_us) {
  std::vector<double> whole_us;
  whole_us.reserve(layer_us.size());
  for (const std::vector<double>& stage : layer_us) {
    whole_us.push_back(std::accumulate(stage.begin(), stage.end(), 0.0));
  }
  const double mean_us =
      std::accumulate(whole_us.begin(), whole_us.end(), 0.0) / static_cast<double>(whole_us.size());
  for (size_t stage = 0; stage < whole_us.size(); ++stage) {
    if (std::abs(whole_us[stage] - mean_us) > kEqual * mean_us) continue;
    for (double& one_us : layer_us[stage]) one_us *= mean_us / whole_us[stage];
  }
}

using Times = std::vector<std::vector<double>>;  // [stage][layers before]

// The slowest stage's time if each in turn takes as many layers as it has time for; nullopt: some
// layers are left over. No other way could place more.
std::optional<double> SlowestWithin(const Times& until_us, double limit_us) {
  const size_t layers = until_us.front().size() - 1;
  size_t begin = 0;
  double slowest_us = 0;
  for (size_t stage = 0; stage < until_us.size(); ++stage) {
    const size_t last = layers - (until_us.size() - 1 - stage);  // The later ones have one each.
    const std::vector<double>& until = until_us[stage];
    size_t end = begin + 1;
    while (end < last && until[end + 1] - until[begin] <= limit_us) ++end;
    slowest_us = std::max(slowest_us, until[end] - until[begin]);
    begin = end;
  }
  if (begin < layers || slowest_us > limit_us) return std::nullopt;
  return slowest_us;
}

double LeastSlowest(const Times& until_us) {
  constexpr int kHalvings = 60;
  double low_us = 0;
  double high_us = 0;
  for (const std::vector<double>& until : until_us) high_us = std::max(high_us, until.back());
  for (int i = 0; i < kHalvings; ++i) {
    const double middle_us = (low_us + high_us) / 2;
    const std::optional<double> slowest_us = SlowestWithin(until_us, middle_us);
    (slowest_us.has_value() ? high_us : low_us) = slowest_us.value_or(middle_us);
  }
  return high_us;
}

// The shares whose times have the least sum of squares, none above the limit.
std::vector<int64_t> EvenestShares(const Times& until_us, double limit_us) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  constexpr double kRounding = 1e-9;
  const size_t layers = until_us.front().size() - 1;
  std::vector<double> least(layers + 1, kNever);  // For the stages so far, by their layers.
  least[0] = 0;
  std::vector<std::vector<size_t>> share(until_us.size(), std::vector<size_t>(layers + 1, 0));
  for (size_t stage = 0; stage < until_us.size(); ++stage) {
    const std::vector<double>& until = until_us[stage];
    std::vector<double> next(layers + 1, kNever);
    for (size_t end = stage + 1; end <= layers; ++end) {
      for (size_t begin = end; begin-- > stage;) {
        const double us = until[end] - until[begin];
        if (us > limit_us * (1 + kRounding)) break;
        // The last of equals, which has the largest share.
        if (least[begin] + us * us > next[end] * (1 + kRounding)) continue;
        next[end] = least[begin] + us * us;
        share[stage][end] = end - begin;
      }
    }
    least = std::move(next);
  }
  std::vector<int64_t> shares(until_us.size());
  size_t end = layers;
  for (size_t stage = until_us.size(); stage-- > 0;) {
    shares[stage] = static_cast<int64_t>(share[stage][end]);
    end -= share[stage][end];
  }
  return shares;
}

}  // namespace

std::string BalanceLayers(std::vector<std::vector<double>> layer_us) {
  MakeEqual(layer_us);
  std::vector<std::vector<double>> until_us;  // [stage][layers]: from layer 0 on.
  for (const std::vector<double>& stage : layer_us) {
    std::vector<double>& sums = until_us.emplace_back(1, 0.0);
    for (const double one_us : stage) sums.push_back(sums.back() + one_us);
  }
  return absl::StrJoin(EvenestShares(until_us, LeastSlowest(until_us)), ",");
}

absl::StatusOr<std::vector<int64_t>> ParsePartition(const std::string& partition,
                                                    const SplitOptions& options) {
  std::vector<int64_t> shares;
  for (const absl::string_view part : absl::StrSplit(partition, ',')) {
    int64_t share = 0;
    if (!absl::SimpleAtoi(part, &share) || share < 1 || share > kMaxLayers) {
      return InvalidField(options.partition,
                          absl::StrCat("got '", part, "' in '", partition,
                                       "'; expected counts of at least 1, such as 3,3,4"));
    }
    shares.push_back(share);
  }
  return shares;
}

absl::StatusOr<std::vector<LayerRange>> SplitLayers(int64_t layers, int64_t pp_size,
                                                    const std::string& partition,
                                                    const SplitOptions& options) {
  if (layers > kMaxLayers) {
    return InvalidField("layers", absl::StrCat("got ", layers, "; expected at most ", kMaxLayers));
  }
  if (pp_size < 1 || pp_size > layers) {
    return InvalidField(options.stages, absl::StrCat("got ", pp_size, " stages for ", layers,
                                                     " layers; expected from 1 to the layers"));
  }
  std::vector<int64_t> shares = EvenShares(layers, pp_size);
  if (!partition.empty()) {
    BATON_ASSIGN_OR_RETURN(shares, ParsePartition(partition, options));
  }
  if (static_cast<int64_t>(shares.size()) != pp_size) {
    return InvalidField(options.partition,
                        absl::StrCat("'", partition, "' has ", shares.size(), " stages; expected ",
                                     options.stages, " = ", pp_size));
  }
  std::vector<LayerRange> ranges;
  int64_t end = 0;
  for (const int64_t share : shares) {
    ranges.push_back({static_cast<int>(end), static_cast<int>(end + share)});
    end += share;
  }
  if (end != layers) {
    return InvalidField(options.partition,
                        absl::StrCat("'", partition, "' sums to ", end, "; expected the model's ",
                                     layers, " layers"));
  }
  return ranges;
}

}  // namespace baton::config
