#include "common/kv/block_pool.h"

#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton {

BlockPool::BlockPool(int page_count)
    : state_(static_cast<size_t>(page_count), State::kFree),
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
    BATON_CHECK(state_[page] == State::kFree) << "page " << page;
    state_[page] = State::kOwned;
  }
  free_count_ -= count;
  owned_count_ += count;
  return pages;
}

void BlockPool::Free(std::span<const int> pages) {
  Move(pages, State::kOwned, State::kFree);
  owned_count_ -= static_cast<int>(pages.size());
}

void BlockPool::Quarantine(std::span<const int> pages) {
  Move(pages, State::kOwned, State::kQuarantined);
  owned_count_ -= static_cast<int>(pages.size());
  quarantined_count_ += static_cast<int>(pages.size());
}

void BlockPool::EndQuarantine(std::span<const int> pages) {
  Move(pages, State::kQuarantined, State::kFree);
  quarantined_count_ -= static_cast<int>(pages.size());
}

void BlockPool::Move(std::span<const int> pages, State from, State to) {
  for (const int page : pages) {
    BATON_CHECK(page >= 0 && page < page_count()) << "page " << page << " of " << page_count();
    BATON_CHECK(state_[page] == from) << "page " << page << " is not in the state it leaves";
    state_[page] = to;
    if (to != State::kFree) continue;
    ++times_freed_[static_cast<size_t>(page)];
    ++freed_total_;
    const size_t tail = (head_ + static_cast<size_t>(free_count_)) % free_list_.size();
    free_list_[tail] = page;
    ++free_count_;
  }
}

absl::Status BlockPool::CheckInvariants() const {
  int free = 0;
  int owned = 0;
  int quarantined = 0;
  for (const State state : state_) {
    free += state == State::kFree ? 1 : 0;
    owned += state == State::kOwned ? 1 : 0;
    quarantined += state == State::kQuarantined ? 1 : 0;
  }
  if (free == free_count_ && owned == owned_count_ && quarantined == quarantined_count_) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("I1: pages free/owned/quarantined are ", free, "/", owned,
                                          "/", quarantined, ", the counts say ", free_count_, "/",
                                          owned_count_, "/", quarantined_count_));
}

}  // namespace baton
