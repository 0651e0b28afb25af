// Pages for what is decoded. A request is admitted with pages for its prompt and for a reserve of
// new tokens, and takes a page at a time behind that: most texts end long before max_tokens, which
// pages for whole texts would wait for.
//
// When a row lacks a page and the cache has none to give up, the youngest requests are retracted,
// those that only hold a ticket first, as they are the youngest. Here such a request ends: nothing
// here can compute its prompt again. The router goes on with its text where there is room, and
// comes back as one of the youngest. Until the rows have their pages, nothing is admitted.
//
// The oldest that may be retracted never is, and fits the whole pool by itself. Older ones that may
// not hold all of their pages. So it ends, whatever comes, and so does the next oldest then. Pages
// that are on their way back are counted, so that one shortage does not retract everybody.
//
// Rejected: to keep a retracted text's age, which routers would have to tell and services believe;
// to keep its KV elsewhere meanwhile, a second place for pages with limits of its own.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/base/coverage.h"
#include "common/base/status.h"
#include "services/decode/core/decode_state.h"

namespace baton::decode {

int DecodeCore::State::PagesAtFirst(const Request& request) const {
  if (!request.resumes || !grows) return PagesFor(request);
  const int reserved = std::min(request.token_limit, limits.reserved_decode_tokens);
  return limits.layout.PagesFor(request.prompt_tokens + reserved);
}

// For the token that it feeds next.
bool DecodeCore::State::LacksPage(const Request& request) const {
  const int position = request.prompt_tokens + request.generated - 1;
  return static_cast<int>(request.pages.size()) <= position / limits.layout.page_size;
}

// Between two steps; the oldest first. No step runs then, so what is retracted is in none.
void DecodeCore::State::GrowRows() {
  if (running_step.has_value()) return;
  rows_in_want = 0;
  for (const auto& [generation, attempt_id] : granted) {
    Request& request = requests.at(attempt_id);
    if (request.phase != Phase::kCommitted || !request.stream_open || !LacksPage(request)) continue;
    if (AvailablePages() == 0) {
      ++rows_in_want;
      continue;
    }
    Covered<"decode: a text takes a page more">();
    request.new_page = TakePages(1).front();
    request.pages.push_back(request.new_page);
  }
  if (rows_in_want > 0) MakeRoomForRows();
}

// That are free, or given up by the cache when they are needed, once nothing uses them any more.
int DecodeCore::State::PagesToReturn(int own, PageTree::Node prefix) const {
  return own + (tree.has_value() ? tree->PagesOfOnePin(prefix) : 0);
}

void DecodeCore::State::MakeRoomForRows() {
  Covered<"decode: a text waits for a page">();
  int returning = 0;
  for (const auto& [generation, hold] : holds) {
    returning += PagesToReturn(static_cast<int>(hold.pages.size()), hold.prefix);
  }
  std::vector<uint64_t> open;  // Those that may give way, oldest first.
  for (const auto& [generation, attempt_id] : granted) {
    if (requests.at(attempt_id).resumes) open.push_back(attempt_id);
  }
  while (returning < rows_in_want && open.size() > 1) {
    const Request& youngest = requests.at(open.back());
    if (youngest.phase == Phase::kCommitted && youngest.stream_open && LacksPage(youngest)) {
      --rows_in_want;
    }
    const int own = static_cast<int>(youngest.pages.size()) - youngest.prefix.pages;
    returning += PagesToReturn(own, youngest.prefix.node);
    Retract(open.back());
    open.pop_back();
  }
}

void DecodeCore::State::Retract(uint64_t attempt_id) {
  const Phase phase = requests.at(attempt_id).phase;
  if (phase == Phase::kGranting) Covered<"decode: a request without a ticket gives way">();
  if (phase == Phase::kReserved) Covered<"decode: a request whose KV is to come gives way">();
  if (phase == Phase::kCommitted) Covered<"decode: a text gives way">();
  ++retractions_total;
  Complete(
      attempt_id,
      Own(Retracted(absl::AbortedError("it gave its KV pages to older requests; send it again"))));
}

}  // namespace baton::decode
