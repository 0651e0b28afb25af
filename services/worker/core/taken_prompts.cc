#include "services/worker/core/taken_prompts.h"

#include <algorithm>
#include <utility>

namespace baton::worker {

void TakenPrompts::Add(uint64_t router, Keys keys) {
  if (keys.empty()) return;
  MutexLock lock(&mutex_);
  keys_ += keys.size();
  prompts_.push_back({++last_, router, std::move(keys)});
  while (keys_ > kMaxTakenKeys) {
    keys_ -= prompts_.front().keys.size();
    prompts_.pop_front();
  }
}

TakenPrompts::News TakenPrompts::Untold(uint64_t router) const {
  News news;
  MutexLock lock(&mutex_);
  news.last = last_;
  const auto told = told_.find(router);
  const uint64_t before = told == told_.end() ? 0 : told->second;
  for (const Prompt& prompt : prompts_) {
    if (prompt.number > before && prompt.router != router) news.prompts.push_back(prompt.keys);
  }
  return news;
}

// Answers may come out of order. The router that was told least gives way to a new one: it has most
// likely gone, and if it has not, it hears some prompts twice.
void TakenPrompts::Told(uint64_t router, uint64_t last) {
  MutexLock lock(&mutex_);
  uint64_t& told = told_[router];
  told = std::max(told, last);
  if (told_.size() <= kKnownRouters) return;
  auto least = told_.end();
  for (auto at = told_.begin(); at != told_.end(); ++at) {
    if (at->first == router) continue;
    if (least == told_.end() || at->second < least->second) least = at;
  }
  told_.erase(least);
}

}  // namespace baton::worker
