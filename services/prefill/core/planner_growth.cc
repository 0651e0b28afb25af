// Pages for what the chain decodes. A request is admitted with pages for all that it reads and for
// a reserve of new tokens, and takes a page at a time behind that: most texts end long before
// max_tokens, which pages for whole texts would wait for.
//
// A request whose prompt the chain can't read, since it does not have its ids, takes all at once
// and never gives way.
//
// When a row lacks a page and the cache has none to give up, the youngest requests that the chain
// decodes are retracted: the next plan closes them on every stage, their pages come back, and they
// wait again in their old order. Later they read prompt and text as a prompt, and the draws go on
// with the next index: the text is the same as without that. What is in flight meanwhile still
// counts. Until the rows have their pages, nothing is admitted.
//
// The oldest is never retracted, and fits the whole pool by itself, so it ends. A retracted request
// is admitted with a new reserve on top of what it held, so it does not come back before another
// has ended or given way. Pages that are on their way back are counted, so that one shortage does
// not retract everybody.
//
// How many are admitted is a matter of how much the open texts are expected to grow (SGLang's
// PrefillAdder): by a share of what they may still have, of at most kMostExpectedTokens. The share
// falls with every plan that decodes, for most texts end early; a retraction raises it to the share
// that texts have by now and soon will. Where nothing is open, what fits the pool is admitted.
//
// Rejected: retracting the longest, which wastes the most; keeping KV elsewhere meanwhile, a second
// place for pages with limits and failures of its own.
#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "services/prefill/core/planner_state.h"

namespace baton::prefill {
namespace {

// As SGLang has them.
constexpr double kShareAtFirst = 0.7;
constexpr double kLeastShare = 0.14;      // As a share of that at first,
constexpr double kPlansToTheLeast = 600;  // which it falls to in so many plans.
constexpr int kMostExpectedTokens = 4096;
constexpr int kTokensSoon = 20;

}  // namespace

// What its pages at its admission are for.
int ChainPlanner::State::AdmissionTokens(const Request& request) const {
  const int most = request.kv_tokens();
  if (limits.reserved_decode_tokens >= most - request.read_tokens) return most;
  return request.read_tokens + limits.reserved_decode_tokens;
}

bool ChainPlanner::State::HasPageForRow(const Request& request) const {
  return static_cast<int>(request.pages.size()) > request.planned_tokens / limits.page_size;
}

void ChainPlanner::State::GrowRows() {
  do {
    rows_in_want = 0;
    for (const uint64_t attempt_id : ready) {
      Request& request = requests.at(attempt_id);
      if (HasPageForRow(request)) continue;
      if (AvailablePages() == 0) {
        ++rows_in_want;
        continue;
      }
      request.new_page = TakePages(1).front();
      request.pages.push_back(request.new_page);
    }
  } while (rows_in_want > 0 && MakeRoomForRows());
}

// That are free, or given up by the cache when they are needed, once it is closed.
int ChainPlanner::State::PagesToReturn(const Request& request) const {
  const int own = static_cast<int>(request.pages.size()) - request.prefix.pages;
  return own + (tree.has_value() ? tree->PagesOfOnePin(request.prefix.node) : 0);
}

// That it is expected to have in the end.
int ChainPlanner::State::ExpectedPages(const Request& request) const {
  const int known = request.prompt_tokens + request.drawn();
  const int left = std::min(request.kv_tokens() - known, kMostExpectedTokens);
  const int expected = known + static_cast<int>(std::ceil(growth_share * std::max(left, 0)));
  return PagesFor(std::max(expected, AdmissionTokens(request)));
}

int ChainPlanner::State::WantedPages(uint64_t attempt_id) const {
  return ExpectedPages(requests.at(attempt_id));
}

// What open requests will take yet, and by that what is left for others.
void ChainPlanner::State::ExpectGrowth() {
  growth_pages = 0;
  if (limits.conservativeness == 0) return;
  if (growth_share == 0) growth_share = GrowthShareAtFirst();
  for (const uint64_t attempt_id : open) {
    const Request& request = requests.at(attempt_id);
    if (request.ending() || request.ticket.has_value()) continue;
    const int held = static_cast<int>(request.pages.size());
    growth_pages += std::max(WantedPages(attempt_id) - held, 0);
  }
}

double ChainPlanner::State::GrowthShareAtFirst() const {
  return std::min(kShareAtFirst * limits.conservativeness, 1.0);
}

// A plan decodes.
void ChainPlanner::State::ExpectLessGrowth() {
  const double first = GrowthShareAtFirst();
  const double step = first * (1 - kLeastShare) / kPlansToTheLeast;
  growth_share = std::max(growth_share - step, first * kLeastShare);
}

// A text gives way to others.
void ChainPlanner::State::ExpectMoreGrowth() {
  if (limits.conservativeness == 0) return;
  double drawn = 0;
  double most = 1;
  for (const uint64_t attempt_id : open) {
    const Request& request = requests.at(attempt_id);
    if (request.ending() || !request.decoding()) continue;
    drawn += request.drawn() + kTokensSoon;
    most += std::min(request.token_limit, kMostExpectedTokens);
  }
  growth_share = std::min(std::max(growth_share, drawn / most), 1.0);
}

// True: there is room at once, for no stage knew of what gave way.
bool ChainPlanner::State::MakeRoomForRows() {
  int returning = 0;
  std::vector<uint64_t> decoded;  // Those that may give way, oldest first.
  for (const uint64_t attempt_id : open) {
    const Request& request = requests.at(attempt_id);
    if (request.ending()) {
      returning += PagesToReturn(request);
    } else if (request.may_give_way()) {
      decoded.push_back(attempt_id);
    }
  }
  while (returning < rows_in_want && decoded.size() > 1) {
    Request& youngest = requests.at(decoded.back());
    const bool wants = std::find(ready.begin(), ready.end(), decoded.back()) != ready.end() &&
                       !HasPageForRow(youngest);
    if (wants) --rows_in_want;
    returning += PagesToReturn(youngest);
    Retract(decoded.back());
    decoded.pop_back();
    ExpectMoreGrowth();
  }
  return AvailablePages() > 0;
}

void ChainPlanner::State::Retract(uint64_t attempt_id) {
  Request& request = requests.at(attempt_id);
  request.retracting = true;
  std::erase(ready, attempt_id);
  ++retractions_total;
  Close(attempt_id, request);
}

// Every stage has closed it: it waits again, with what it has drawn behind its prompt.
void ChainPlanner::State::Requeue(uint64_t attempt_id) {
  Request& request = requests.at(attempt_id);
  ReleasePages(request);
  std::erase(open, attempt_id);
  request.open = request.told = request.retracting = request.abort_issued = false;
  request.pages.clear();
  request.new_page = -1;
  request.prefix = {};
  request.planned_tokens = request.computed_tokens = 0;
  if (request.has_ticket) request.writers.clear();  // It is read here.
  if (!request.writers.empty()) request.planned_tokens = request.prompt_tokens;
  request.over_us = kNeverUs;
  if (request.text.empty()) request.outcome = {};  // Its prompt is computed anew.
  const int read = request.read_tokens - request.prompt_tokens;
  if (request.tokens != nullptr && request.drawn() > read) {
    auto tokens = std::make_shared<std::vector<int32_t>>(*request.tokens);
    tokens->insert(tokens->end(), request.text.begin() + read, request.text.end());
    request.tokens = std::move(tokens);
  }
  request.read_tokens = request.prompt_tokens + request.drawn();
  Enqueue(attempt_id);
}

}  // namespace baton::prefill
