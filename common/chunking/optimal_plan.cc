// PlanOptimal (chunk_plan.h states the rule).
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/chunking/chunk_plan.h"
#include "common/chunking/cutter.h"
#include "common/chunking/flow_shop.h"

namespace baton {
namespace {

constexpr double kCoarse = 1e-3;  // Share of a limit.
constexpr double kFine = 1e-5;
// The search may take this many steps, each of one chunk through one stage: about 5 ms in all. With
// so many chunks, unequal chunk times gain little.
constexpr size_t kMostSteps = 300'000;

class Search {
 public:
  Search(const PromptShape& prompt, const std::vector<StageCost>& stages, int max_tokens)
      : prompt_(prompt),
        stages_(stages),
        max_tokens_(max_tokens),
        cutter_(prompt, stages, max_tokens),
        fewest_((prompt.tokens + max_tokens - 1) / max_tokens),
        most_((prompt.tokens + prompt.page_size - 1) / prompt.page_size) {}

  void FindCount();
  // What is better than chunks of equal time, if that is worth it.
  void FindUneven();

  std::vector<int> Take() { return std::move(best_); }

 private:
  double Try(std::vector<int> chunks);
  double TryCount(int count, double precision);
  double ShortestLimit(int count, double precision) const;
  int FinerPages(int bottom, double bottom_us);
  double MeanChunk() const;
  void FindSlope();
  void TrySglang(const StageCost& stage);
  bool CanMove(size_t chunks, size_t reach) const;
  void MovePages(std::vector<int> chunks);
  std::vector<int> Moved(std::vector<int> chunks, size_t from, size_t to) const;

  const PromptShape prompt_;
  const std::vector<StageCost>& stages_;
  const int max_tokens_;
  const Cutter cutter_;
  const int fewest_;
  const int most_;
  std::vector<int> best_;
  double best_us_ = std::numeric_limits<double>::infinity();
  size_t steps_left_ = kMostSteps;
};

// When the first token comes; infinite where the prompt can't be cut so.
double Search::Try(std::vector<int> chunks) {
  if (chunks.empty()) return std::numeric_limits<double>::infinity();
  const double us = RunChunks(stages_, prompt_.prefix_length, chunks).first_token_us;
  if (us < best_us_) {
    best_us_ = us;
    best_ = std::move(chunks);
  }
  return us;
}

// By the shortest limit that cuts the prompt into so few.
double Search::TryCount(int count, double precision) {
  return Try(cutter_.Cut({.us = ShortestLimit(count, precision)}, count));
}

double Search::ShortestLimit(int count, double precision) const {
  // Chunks take together at least as long as the whole: no limit is shorter than this.
  double low_us = cutter_.Micros(prompt_.prefix_length, prompt_.tokens) / count;
  double high_us = low_us;
  while (cutter_.Count(high_us, count) > count) {
    low_us = high_us;
    high_us *= 1.25;
  }
  while (high_us - low_us > precision * high_us) {
    const double middle_us = (low_us + high_us) / 2;
    (cutter_.Count(middle_us, count) > count ? low_us : high_us) = middle_us;
  }
  return high_us;
}

// Overhead grows with the number, bubbles shrink: one valley, but for the grain of pages and where
// chunks may not be longer. So: by steps of a tenth until it has risen for a while, then every
// number around the best.
void Search::FindCount() {
  constexpr int kRising = 4;
  int bottom = fewest_;
  int rising = 0;
  double bottom_us = std::numeric_limits<double>::infinity();
  const auto step_of = [](int count) { return std::max(1, count / 10); };
  for (int count = fewest_; count <= most_ && rising < kRising; count += step_of(count)) {
    const double us = TryCount(count, kCoarse);
    rising = us < bottom_us ? 0 : rising + 1;
    if (us < bottom_us) {
      bottom_us = us;
      bottom = count;
    }
  }
  bottom = FinerPages(bottom, bottom_us);
  constexpr int kAround = 4;  // Around the flat minimum: more changes less than a thousandth.
  const int stride = std::max(1, step_of(bottom) / kAround);
  // Both ends again: where chunks are a few pages, a limit a thousandth too long may let a page
  // more into one of them.
  for (int count = std::max(fewest_, bottom - step_of(bottom));
       count <= std::min(most_, bottom + step_of(bottom)); count += stride) {
    TryCount(count, kFine);
  }
}

// Where chunks are a few pages, the next cuts into equal ones, with a page less in each, lie far
// off, and what is between is worse than both: some chunks take as long, and there are more.
int Search::FinerPages(int bottom, double bottom_us) {
  constexpr int kFewPages = 8;
  const int pages_each = (most_ + bottom - 1) / bottom;
  for (int pages = pages_each - 1; pages > 0 && pages_each <= kFewPages; --pages) {
    const int finer = (most_ + pages - 1) / pages;
    const double us = TryCount(finer, kCoarse);
    if (us >= bottom_us) continue;
    bottom_us = us;
    bottom = finer;
  }
  return bottom;
}

double Search::MeanChunk() const {
  double us = 0;
  int prefix_length = prompt_.prefix_length;
  for (const int tokens : best_) {
    us += cutter_.Micros(prefix_length, tokens);
    prefix_length += tokens;
  }
  return us / static_cast<double>(best_.size());
}

// If stages differ, the slowest should be busy all the time, and the other stages' work before its
// first chunk and after its last should be short. A limit that grows begins with small chunks, one
// that shrinks ends with them, and a longer one leaves a short rest at the end. Search both in
// coarse steps, then in finer ones around the best.
void Search::FindSlope() {
  const int most = std::min(most_, 4 * static_cast<int>(best_.size()));
  size_t tries_left = kMostSteps / (best_.size() * stages_.size());
  TimeLimit best = {.us = MeanChunk()};
  const auto look = [&](const TimeLimit& limit) {
    constexpr double kSteepest = 1.6;
    if (std::abs(limit.slope) > kSteepest || tries_left == 0) return;
    --tries_left;
    const double before_us = best_us_;
    Try(cutter_.Cut(limit, most));
    if (best_us_ < before_us) best = limit;
  };
  const double flat_us = best.us;
  for (const double slope : {-1.2, -0.8, -0.4, 0.4, 0.8, 1.2}) {
    for (const double factor : {0.8, 1.0, 1.25, 1.5}) look({factor * flat_us, slope});
  }
  const auto look_around = [&](double step) {
    const TimeLimit centre = best;
    for (const int longer : {-1, 0, 1}) {
      for (const int steeper : {-1, 0, 1}) {
        if (longer == 0 && steeper == 0) continue;
        look({centre.us * (1 + longer * step), centre.slope + 2 * steeper * step});
      }
    }
    return best.us != centre.us || best.slope != centre.slope;
  };
  for (const double step : {0.2, 0.1, 0.05, 0.02}) {
    if (look_around(step)) look_around(step);
  }
}

// SGLang's cut may lie far from what time limits cut. Its unit may be more than a chunk may have,
// or no whole pages.
void Search::TrySglang(const StageCost& stage) {
  constexpr double kSmooth = 0.75;  // Its default.
  std::vector<int> chunks = PlanSglang(prompt_, stage, max_tokens_, kSmooth);
  const bool allowed = std::all_of(chunks.begin(), chunks.end(), [&](const int& tokens) {
    return tokens <= max_tokens_ && (tokens % prompt_.page_size == 0 || &tokens == &chunks.back());
  });
  if (allowed) Try(std::move(chunks));
}

// With a page of one chunk in another; {}: it has no page, or no room.
std::vector<int> Search::Moved(std::vector<int> chunks, size_t from, size_t to) const {
  chunks[from] -= prompt_.page_size;
  chunks[to] += prompt_.page_size;
  if (chunks[from] < 0 || chunks[to] > max_tokens_) return {};
  if (chunks[from] == 0) chunks.erase(chunks.begin() + static_cast<std::ptrdiff_t>(from));
  return chunks;
}

// Whether each of so many chunks can be tried with a page more and less of those within `reach`.
bool Search::CanMove(size_t chunks, size_t reach) const {
  const size_t moves = chunks * std::min(chunks, 2 * reach);
  return moves * chunks * stages_.size() <= steps_left_;
}

// With few chunks, single pages matter. Moves pages between any two chunks, or, with more chunks,
// only between neighbours, as long as that helps.
void Search::MovePages(std::vector<int> chunks) {
  if (chunks.empty()) return;
  double us = RunChunks(stages_, prompt_.prefix_length, chunks).first_token_us;
  for (bool better = true; better;) {
    better = false;
    const size_t reach = CanMove(chunks.size(), chunks.size()) ? chunks.size() : 1;
    if (!CanMove(chunks.size(), reach)) break;
    const size_t steps = chunks.size() * stages_.size();
    for (size_t from = 0; from < chunks.size(); ++from) {
      for (size_t to = from - std::min(from, reach);
           to < std::min(from + reach + 1, chunks.size()) && from < chunks.size(); ++to) {
        if (from == to) continue;
        steps_left_ -= steps;
        std::vector<int> moved = Moved(chunks, from, to);
        if (moved.empty()) continue;
        const double moved_us = RunChunks(stages_, prompt_.prefix_length, moved).first_token_us;
        if (moved_us >= us) continue;
        us = moved_us;
        chunks = std::move(moved);
        better = true;
      }
    }
  }
  Try(std::move(chunks));
}

void Search::FindUneven() {
  const std::vector<int> even = best_;
  const double even_us = best_us_;
  if (cutter_.stages().size() > 1) FindSlope();
  for (const StageCost& stage : cutter_.stages()) TrySglang(stage);
  const auto count = static_cast<int>(best_.size());
  MovePages(best_);
  for (const int chunks : {count + 1, count + 2}) {
    if (chunks > most_ || !CanMove(static_cast<size_t>(chunks), 1)) break;
    MovePages(cutter_.Cut({.us = ShortestLimit(chunks, kCoarse)}, chunks));
  }
  // Costs are measured: a smaller gain than this may be noise.
  constexpr double kGain = 0.998;
  if (best_us_ < kGain * even_us) return;
  best_ = even;
  best_us_ = even_us;
}

}  // namespace

std::vector<int> PlanOptimal(const PromptShape& prompt, const std::vector<StageCost>& stages,
                             int max_tokens) {
  BATON_CHECK(!stages.empty() && prompt.tokens > 0 && max_tokens >= prompt.page_size)
      << prompt.tokens << " tokens, at most " << max_tokens << " a chunk";
  Search search(prompt, stages, max_tokens);
  search.FindCount();
  search.FindUneven();
  return search.Take();
}

}  // namespace baton
