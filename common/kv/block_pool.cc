#include "common/kv/block_pool.h"

#include <numeric>

#include "common/base/check.h"

namespace baton {

BlockPool::BlockPool(int page_count)
    : owned_(static_cast<size_t>(page_count), false),
      times_freed_(static_cast<size_t>(page_count), 0),
      free_list_(static_cast<size_t>(page_count)),
      free_count_(page_count) {
  BATON_CHECK(page_count > 0) << "page_count " << page_count;
  std::iota(free_list_.begin(), free_list_.end(), 0);
}

std::optional<std::vector<int>> BlockPool::Allocate(int count) {
  BATON_CHECK(count >= 0) << "count " << count;
  if (count > free_count_) return std::nullopt;
  std::vector<int> pages(static_cast<size_t>(count));
  for (int& page : pages) {
    page = free_list_[head_];
    head_ = (head_ + 1) % free_list_.size();
    BATON_CHECK(!owned_[page]) << "page " << page;
    owned_[page] = true;
  }
  free_count_ -= count;
  return pages;
}

void BlockPool::Free(std::span<const int> pages) {
  for (const int page : pages) {
    BATON_CHECK(page >= 0 && page < page_count()) << "page " << page << " of " << page_count();
    BATON_CHECK(owned_[page]) << "page " << page << " is not owned";
    owned_[page] = false;
    ++times_freed_[static_cast<size_t>(page)];
    ++freed_total_;
    const size_t tail = (head_ + static_cast<size_t>(free_count_)) % free_list_.size();
    free_list_[tail] = page;
    ++free_count_;
  }
}

}  // namespace baton
