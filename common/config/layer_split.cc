#include "common/config/layer_split.h"

#include <cmath>
#include <cstddef>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace baton::config {
namespace {

constexpr char kField[] = "pp_layer_partition";
// Far above any model; keeps sums from overflowing.
constexpr int64_t kMaxLayers = 65536;
constexpr double kEqual = 0.05;  // Share of measured times; learned times are no more exact.

std::vector<int64_t> EvenShares(int64_t layers, int64_t pp_size) {
  std::vector<int64_t> shares(pp_size, layers / pp_size);
  const int64_t larger = layers % pp_size;
  for (int64_t stage = pp_size - larger; stage < pp_size; ++stage) ++shares[stage];
  return shares;
}

}  // namespace

// Each layer goes to the stage that is the least slow with it. That is the best there is: no stage
// could give one away and take another sooner.
std::string BalanceLayers(int64_t layers, std::vector<double> layer_us) {
  const double mean_us =
      std::accumulate(layer_us.begin(), layer_us.end(), 0.0) / static_cast<double>(layer_us.size());
  for (double& one_us : layer_us) {
    if (std::abs(one_us - mean_us) <= kEqual * mean_us) one_us = mean_us;
  }
  std::vector<int64_t> shares(layer_us.size(), 1);
  for (auto given = static_cast<int64_t>(shares.size()); given < layers; ++given) {
    const auto with_one_more_us = [&](size_t stage) {
      return static_cast<double>(shares[stage] + 1) * layer_us[stage];
    };
    size_t least = shares.size() - 1;
    for (size_t stage = least; stage-- > 0;) {
      if (with_one_more_us(stage) < with_one_more_us(least)) least = stage;
    }
    ++shares[least];
  }
  return absl::StrJoin(shares, ",");
}

absl::StatusOr<std::vector<int64_t>> ParsePartition(const std::string& partition) {
  std::vector<int64_t> shares;
  for (const absl::string_view part : absl::StrSplit(partition, ',')) {
    int64_t share = 0;
    if (!absl::SimpleAtoi(part, &share) || share < 1 || share > kMaxLayers) {
      return InvalidField(kField, absl::StrCat("got '", part, "' in '", partition,
                                               "'; expected counts of at least 1, such as 3,3,4"));
    }
    shares.push_back(share);
  }
  return shares;
}

absl::StatusOr<std::vector<LayerRange>> SplitLayers(int64_t layers, int64_t pp_size,
                                                    const std::string& partition) {
  if (layers > kMaxLayers) {
    return InvalidField("layers", absl::StrCat("got ", layers, "; expected at most ", kMaxLayers));
  }
  if (pp_size < 1 || pp_size > layers) {
    return InvalidField("pp_size", absl::StrCat("got ", pp_size, " stages for ", layers,
                                                " layers; expected from 1 to the layers"));
  }
  std::vector<int64_t> shares = EvenShares(layers, pp_size);
  if (!partition.empty()) {
    BATON_ASSIGN_OR_RETURN(shares, ParsePartition(partition));
  }
  if (static_cast<int64_t>(shares.size()) != pp_size) {
    return InvalidField(kField, absl::StrCat("'", partition, "' has ", shares.size(),
                                             " stages; expected pp_size = ", pp_size));
  }
  std::vector<LayerRange> ranges;
  int64_t end = 0;
  for (const int64_t share : shares) {
    ranges.push_back({static_cast<int>(end), static_cast<int>(end + share)});
    end += share;
  }
  if (end != layers) {
    return InvalidField(kField, absl::StrCat("'", partition, "' sums to ", end,
                                             "; expected the model's ", layers, " layers"));
  }
  return ranges;
}

}  // namespace baton::config
