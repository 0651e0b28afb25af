// How a core that keeps KV has pages for a request: free ones, and those that its prefix cache
// gives up.
#ifndef COMMON_KV_CACHED_PAGES_H_
#define COMMON_KV_CACHED_PAGES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "common/kv/block_pool.h"
#include "common/kv/page_tree.h"

namespace baton {

// Pages of `pool` that are free, or that the cache would give up; nullopt: there is no cache.
int AvailablePages(const BlockPool& pool, const std::optional<PageTree>& tree);

// Allocates `count` pages; so many must be available. If too few are free the cache gives up those
// that were unused the longest, and `evicted_total` counts them.
std::vector<int> TakePages(int count, BlockPool& pool, std::optional<PageTree>& tree,
                           uint64_t& evicted_total);

}  // namespace baton

#endif  // COMMON_KV_CACHED_PAGES_H_
