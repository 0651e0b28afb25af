// What must be true of the pages of a process after every event, for tests.
#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/kv/block_pool.h"
#include "common/kv/page_tree.h"

namespace baton {

absl::Status BlockPool::CheckInvariants() const {
  const auto free = std::count(owned_.begin(), owned_.end(), false);
  if (free == free_count_) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("I1: ", free, " pages are free, the count says ", free_count_));
}

absl::Status PageTree::CheckInvariants() const {
  absl::flat_hash_map<Node, int> children;
  absl::flat_hash_map<Node, int> pins;
  size_t leaves = 0;
  int evictable = 0;
  for (const auto& [node, entry] : nodes_) {
    if (entry.parent != 0) {
      if (!nodes_.contains(entry.parent)) {
        return absl::InternalError(absl::StrCat("page ", entry.page, " has lost the one before"));
      }
      ++children[entry.parent];
      pins[entry.parent] += entry.pins;
    }
    evictable += entry.pins == 0 ? 1 : 0;
  }
  for (const auto& [node, entry] : nodes_) {
    const bool leaf = entry.children == 0 && entry.pins == 0;
    leaves += leaf ? 1 : 0;
    if (entry.children != children[node] || entry.pins != entry.holds + pins[node] ||
        leaf != leaves_.contains({entry.used, node})) {
      return absl::InternalError(absl::StrCat("page ", entry.page, " counts ", entry.children,
                                              " children of ", children[node], ", ", entry.pins,
                                              " pins of ", entry.holds + pins[node]));
    }
  }
  if (leaves == leaves_.size() && evictable == evictable_) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(leaves, " leaves of ", leaves_.size(), ", ", evictable,
                                          " evictable pages of ", evictable_));
}

}  // namespace baton
