// The pages of one process. Every page is free or owned (I1).
#ifndef COMMON_KV_BLOCK_POOL_H_
#define COMMON_KV_BLOCK_POOL_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"

namespace baton {

// Not thread-safe: only the core that owns it calls it.
class BlockPool {
 public:
  explicit BlockPool(int page_count);  // > 0

  // Allocates `count` pages, or nothing if fewer are free. The page that has been free longest is
  // used first, so that in production a use after free damages data late; the simulation's canaries
  // detect it at once.
  std::optional<std::vector<int>> Allocate(int count);

  // Owned pages become free. Freeing a page that isn't owned is a broken invariant.
  void Free(std::span<const int> pages);

  int page_count() const { return static_cast<int>(owned_.size()); }
  int free_pages() const { return free_count_; }
  int owned_pages() const { return page_count() - free_count_; }

  // For tests that put canaries into pages when they become free: how often that has happened to
  // one page, and to all together. The state alone would not show a page that is allocated again at
  // once.
  uint64_t times_freed(int page) const { return times_freed_[static_cast<size_t>(page)]; }
  uint64_t freed_total() const { return freed_total_; }

  // I1, recounted from all pages. For tests; defined in testing/.
  absl::Status CheckInvariants() const;

 private:
  std::vector<bool> owned_;            // By page.
  std::vector<uint64_t> times_freed_;  // By page.
  uint64_t freed_total_ = 0;
  std::vector<int> free_list_;  // A ring: pages leave at head_, come back at the tail.
  size_t head_ = 0;
  int free_count_ = 0;
};

}  // namespace baton

#endif  // COMMON_KV_BLOCK_POOL_H_
