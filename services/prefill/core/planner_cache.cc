// The prefix cache: KV that outlives its request (common/kv/page_tree.h).
//
// A page goes into the tree when the plan that fills it is issued: what is issued is computed, and
// every stage computes plans in order, so the next plan may use it, and prompts that arrive
// together share. What the chain has decoded follows when the request is over. An open request pins
// its prefix. A page of the pool that is not free belongs to a request or to the tree.
//
// A prompt is computed from its first token that is not cached, its last one at least. A request
// that was retracted finds what it had computed in the same way. One whose
// tokens' log-probabilities are wanted is computed whole. The cache ends with the epoch.
#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "common/kv/page_tree.h"
#include "services/prefill/core/planner_state.h"

namespace baton::prefill {

void ChainPlanner::State::On(const FlushCache& /*event*/, int64_t /*now_us*/) {
  if (tree.has_value()) pool->Free(tree->Flush());
}

int ChainPlanner::State::AvailablePages() const { return baton::AvailablePages(*pool, tree); }

PageTree::Match ChainPlanner::State::MatchOf(const Request& request) const {
  const bool computes_all = request.prompt_logprobs && request.text.empty();
  if (request.tokens == nullptr || computes_all) return {};
  return tree->Find(request.cache_salt, *request.tokens,
                    (request.read_tokens - 1) / limits.page_size);
}

// Whether what it finds in the cache makes room for it. Looks at the whole prompt, but not where
// all that is free or cached is too little.
bool ChainPlanner::State::FitsWithItsMatch(uint64_t attempt_id) const {
  if (!tree.has_value() || WantedPages(attempt_id) > pool->free_pages() + tree->pages())
    return false;
  const PageTree::Match match = MatchOf(requests.at(attempt_id));
  const bool place = static_cast<int>(open.size()) < limits.max_open_requests;
  if (match.node == 0 || rows_in_want > 0 || !place) return false;
  const int needed = WantedPages(attempt_id) - static_cast<int>(match.pages.size());
  return needed + growth_pages <= AvailablePages() - tree->EvictablePagesOf(match.node);
}

// What a waiting prompt has of its pages now. It is admitted at once or takes its match again,
// since nothing of it is pinned.
void ChainPlanner::State::TakeMatch(uint64_t attempt_id) {
  Request& request = requests.at(attempt_id);
  request.match = MatchOf(request);
  request.planned_tokens = static_cast<int>(request.match.pages.size()) * limits.page_size;
}

// Gives the request its match and what it lacks. Pages that were unused for long are given up for
// it.
void ChainPlanner::State::AllocatePages(uint64_t attempt_id) {
  Request& request = requests.at(attempt_id);
  request.pages = std::move(request.match.pages);
  request.prefix = {request.match.node, static_cast<int>(request.pages.size())};
  request.computed_tokens = request.planned_tokens;
  if (tree.has_value()) tree->Pin(request.prefix.node);
  const std::vector<int> own = TakePages(PagesOf(attempt_id) - request.prefix.pages);
  request.pages.insert(request.pages.end(), own.begin(), own.end());
}

std::vector<int> ChainPlanner::State::TakePages(int count) {
  return baton::TakePages(count, *pool, tree, evicted_pages_total);
}

void ChainPlanner::State::KeepPlanned(Request& request) {
  if (request.tokens == nullptr || request.foreign) return;
  const auto planned = static_cast<size_t>(request.planned_tokens);
  tree->Extend(request.cache_salt, std::span(*request.tokens).first(planned), request.pages,
               request.prefix);
}

// What was planned has been computed. The cache takes what it can use, and the rest is free.
void ChainPlanner::State::ReleasePages(Request& request) {
  const bool keeps = request.tokens != nullptr && !request.foreign;
  if (keeps && request.planned_tokens > request.read_tokens) {
    std::vector<int32_t> tokens = *request.tokens;
    const int read = request.read_tokens - request.prompt_tokens;
    tokens.insert(tokens.end(), request.text.begin() + read, request.text.end());
    // A step ahead of the text's end may have fed a token that was not taken.
    const size_t known = std::min(tokens.size(), static_cast<size_t>(request.planned_tokens));
    tree->Extend(request.cache_salt, std::span(tokens).first(known), request.pages, request.prefix);
  }
  pool->Free(std::span(request.pages).subspan(static_cast<size_t>(request.prefix.pages)));
  if (tree.has_value()) tree->Unpin(request.prefix.node);
}

}  // namespace baton::prefill
