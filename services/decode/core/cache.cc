// The prefix cache: KV that outlives its request (common/kv/page_tree.h), so that the prompt pages
// that are here already are not sent again.
//
// A prompt's pages go into the tree when all of its KV has arrived, on every rank; what was decoded
// follows when the request is over. A request pins its prefix until no step uses it any more. A
// page of the pool that is owned belongs to a request or to the tree.
//
// The prompt's last page, at least, is sent, so that every hand-off has bytes and a commit.
#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "common/kv/cached_pages.h"
#include "services/decode/core/decode_state.h"

namespace baton::decode {

void DecodeCore::State::On(const FlushCache& /*event*/) {
  ++page_changes;
  if (tree.has_value()) pool.Free(tree->Flush());
}

int DecodeCore::State::AvailablePages() const { return baton::AvailablePages(pool, tree); }

std::vector<int> DecodeCore::State::TakePages(int count) {
  return baton::TakePages(count, pool, tree, evicted_pages_total);
}

// Gives the request what the cache has of its prompt, and pages for the rest; false: there are too
// few, and nothing has changed. Pages that were unused for the longest are given up for it.
bool DecodeCore::State::AllocatePages(Request& request) {
  const int needed = PagesAtFirst(request);
  PageTree::Match match;
  // Looks at the whole prompt, but not where all that is free or cached is too little.
  if (request.tokens != nullptr && needed <= pool.free_pages() + tree->pages()) {
    const int most = limits.layout.PagesFor(request.prompt_tokens) - 1;
    match = tree->Find(request.cache_salt, *request.tokens, most);
  }
  const int own = needed - static_cast<int>(match.pages.size());
  const int kept = tree.has_value() ? tree->EvictablePagesOf(match.node) : 0;
  if (own > AvailablePages() - kept) return false;
  request.prefix = {match.node, static_cast<int>(match.pages.size())};
  reused_pages_total += match.pages.size();
  if (tree.has_value()) tree->Pin(match.node);
  request.pages = std::move(match.pages);
  const std::vector<int> pages = TakePages(own);
  request.pages.insert(request.pages.end(), pages.begin(), pages.end());
  return true;
}

void DecodeCore::State::KeepPrompt(Request& request) {
  if (request.tokens == nullptr) return;
  ++page_changes;
  tree->Extend(request.cache_salt, *request.tokens, request.pages, request.prefix);
}

// The last token was not fed, so its KV is not there. What other ranks than the prompt's computed
// is not kept: its bits may differ from those of the same tokens in a prompt.
void DecodeCore::State::KeepText(Request& request) {
  if (request.tokens == nullptr || request.text.empty() ||
      request.writers[0].tensor_rank.size != limits.ranks) {
    return;
  }
  ++page_changes;
  std::vector<int32_t> tokens = *request.tokens;
  tokens.insert(tokens.end(), request.text.begin(), request.text.end() - 1);
  tree->Extend(request.cache_salt, tokens, request.pages, request.prefix);
}

}  // namespace baton::decode
