#include "common/base/strings.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

// Levenshtein's distance; words are short.
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitution = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitution});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string DidYouMean(const std::string& word, const std::vector<std::string>& candidates) {
  // A long word may be far off and still be meant: a third of its letters, two at least.
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  const std::string* best = nullptr;
  for (const std::string& candidate : candidates) {
    // The start of a name counts as one typing error, so that --page finds --page-size.
    const bool is_start = word.size() >= 3 && candidate.compare(0, word.size(), word) == 0;
    const size_t distance = is_start ? 1 : EditDistance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = &candidate;
    }
  }
  return best == nullptr ? "" : absl::StrCat(" (did you mean '", *best, "'?)");
}

}  // namespace baton
