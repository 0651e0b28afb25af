#include "common/kv/cached_pages.h"

#include <utility>

#include "common/base/check.h"

namespace baton {

int AvailablePages(const BlockPool& pool, const std::optional<PageTree>& tree) {
  return pool.free_pages() + (tree.has_value() ? tree->evictable_pages() : 0);
}

std::vector<int> TakePages(int count, BlockPool& pool, std::optional<PageTree>& tree,
                           uint64_t& evicted_total) {
  if (tree.has_value()) {
    const std::vector<int> evicted = tree->Evict(count - pool.free_pages());
    evicted_total += evicted.size();
    pool.Free(evicted);
  }
  std::optional<std::vector<int>> pages = pool.Allocate(count);
  BATON_CHECK(pages.has_value()) << count << " pages are taken, " << pool.free_pages()
                                 << " are free";
  return *std::move(pages);
}

}  // namespace baton
