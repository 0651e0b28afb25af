#include "services/prefill/stage/cost_sweep.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/sync.h"
#include "common/chunking/stage_cost.h"
#include "common/collective/communicator.h"

namespace baton::prefill {
namespace {

// A turn's chunks: its base divided by each of these, together seven eighths of it.
constexpr int kShares[] = {8, 2, 4};
constexpr int kTurns = 3;
// The first turn's base, at most: what a stage that is slow has the time for.
constexpr int kFirstBase = 2048;
constexpr size_t kLeastSamples = 6;  // For four coefficients.
constexpr int kRounds = 4;           // In which the fit sees the samples.
constexpr double kSlower = 1.5;  // A chunk than those before by the token: its prefix is longer.

// The prompt, and memory for a chunk's activations.
class Prompt {
 public:
  static absl::StatusOr<std::unique_ptr<Prompt>> Create(Executor& executor, int tokens,
                                                        int chunk_tokens) {
    std::unique_ptr<Prompt> prompt(new Prompt(executor, tokens));
    const size_t bytes = static_cast<size_t>(chunk_tokens) *
                         static_cast<size_t>(executor.activation_columns()) *
                         ElementBytes(executor.activation_type());
    if (!executor.first_stage()) {
      BATON_ASSIGN_OR_RETURN(prompt->in_, executor.AllocateActivations(bytes));
      const MemorySpan& in = prompt->in_.span();
      // Elsewhere they are whatever they are: what arithmetic makes of them takes no other time.
      if (in.ReadableByHost()) std::memset(in.data, 0, in.bytes);
    }
    if (!executor.last_stage()) {
      BATON_ASSIGN_OR_RETURN(prompt->out_, executor.AllocateActivations(bytes));
    }
    return prompt;
  }

  // The next chunk. Waits.
  absl::StatusOr<SweepSample> Run(int tokens) {
    SequenceStep sequence;
    sequence.token_count = tokens;
    sequence.prefix_length = done_tokens_;
    sequence.pages = pages_;
    if (executor_.first_stage()) {
      sequence.tokens = std::span<const int32_t>(ids_).subspan(static_cast<size_t>(done_tokens_),
                                                               static_cast<size_t>(tokens));
    }
    Step step;
    step.sequences.push_back(sequence);
    step.in = View(in_, tokens);
    step.out = View(out_, tokens);
    StepResult ended;
    Notification end;
    executor_.Submit(std::move(step), [&](StepResult result) {
      ended = std::move(result);
      end.Notify();
    });
    end.WaitForNotification();
    BATON_RETURN_IF_ERROR(ended.status);
    const SweepSample sample{done_tokens_, tokens, ended.compute_us};
    done_tokens_ += tokens;
    return sample;
  }

  int done_tokens() const { return done_tokens_; }

 private:
  Prompt(Executor& executor, int tokens) : executor_(executor), ids_(static_cast<size_t>(tokens)) {
    const int vocabulary = executor.config().vocab_size;
    for (int i = 0; i < tokens; ++i) ids_[static_cast<size_t>(i)] = i % vocabulary;
    const int page = executor.kv().page_size;
    pages_.resize(static_cast<size_t>((tokens + page - 1) / page));
    std::iota(pages_.begin(), pages_.end(), 0);
  }

  TensorView View(const MemoryBuffer& buffer, int rows) const {
    if (buffer.span().empty()) return {};
    TensorView view{buffer.span(), executor_.activation_type(), rows,
                    executor_.activation_columns()};
    view.memory = view.memory.Sub(0, view.bytes());
    return view;
  }

  Executor& executor_;
  std::vector<int32_t> ids_;
  std::vector<int32_t> pages_;
  MemoryBuffer in_;
  MemoryBuffer out_;
  int done_tokens_ = 0;
};

// A chunk's expected time, from the slowest sample by token.
int64_t ExpectedMicros(const std::vector<SweepSample>& samples, int tokens) {
  double slowest = 0;
  for (const SweepSample& sample : samples) {
    slowest = std::max(slowest, static_cast<double>(sample.micros) / sample.tokens);
  }
  return static_cast<int64_t>(kSlower * slowest * tokens);
}

// A turn's chunks, in whole pages; empty: one of them has none.
std::vector<int> TurnChunks(int page_size, int64_t base) {
  std::vector<int> chunks;
  for (const int share : kShares) {
    const int64_t pages = base / share / page_size;
    if (pages < 1) return {};
    chunks.push_back(static_cast<int>(pages * page_size));
  }
  return chunks;
}

// What chunks one turn may have of what is left for all of them.
bool FitsInto(int64_t base, int64_t left, int turns_left) {
  return base * 7 / 8 * turns_left <= left;
}

// The base of all turns if `room_tokens` are few.
int64_t FirstBase(int max_chunk_tokens, int64_t room_tokens) {
  int64_t base = std::min(max_chunk_tokens, kFirstBase);
  while (base > 0 && !FitsInto(base, room_tokens, kTurns)) base /= 2;
  return base;
}

// Runs the turns, each with larger chunks than the last one as far as there is time and room: where
// a chunk's overhead is most of it, small ones do not tell what tokens cost.
class Measurement {
 public:
  Measurement(Prompt& prompt, const SweepLimits& limits, int page_size, int64_t room_tokens,
              const std::function<absl::Status(SweepWord)>& tell)
      : prompt_(prompt),
        limits_(limits),
        page_size_(page_size),
        room_tokens_(room_tokens),
        tell_(tell),
        end_us_(NowUs() + limits.budget_us) {}

  absl::Status Run(std::vector<SweepSample>& samples) {
    BATON_ASSIGN_OR_RETURN(const SweepSample cold, Chunk(page_size_));
    // It took longer than it will, so it stands for no time, but for what to expect of the next.
    std::vector<SweepSample> seen = {cold};
    int64_t base = FirstBase(limits_.max_chunk_tokens, room_tokens_);
    for (int turn = 0; turn < kTurns; ++turn) {
      if (turn > 0) base = LargerBase(base, seen, kTurns - turn);
      for (const int tokens : TurnChunks(page_size_, base)) {
        if (NowUs() + ExpectedMicros(seen, tokens) > end_us_) return absl::OkStatus();
        BATON_ASSIGN_OR_RETURN(const SweepSample sample, Chunk(tokens));
        if (samples.empty()) seen.clear();
        samples.push_back(sample);
        seen.push_back(sample);
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<SweepSample> Chunk(int tokens) {
    if (tell_) BATON_RETURN_IF_ERROR(tell_({prompt_.done_tokens(), tokens}));
    return prompt_.Run(tokens);
  }

  // Doubles the base as long as all turns that are left have the time and room for it.
  int64_t LargerBase(int64_t base, const std::vector<SweepSample>& seen, int turns_left) const {
    const int64_t room_tokens = room_tokens_ - (prompt_.done_tokens() - page_size_);
    const int64_t left_us = end_us_ - NowUs();
    // Extrapolate from the largest chunk: fixed overhead is its smallest part.
    const SweepSample& largest = *std::max_element(
        seen.begin(), seen.end(), [](const SweepSample& one, const SweepSample& other) {
          return std::pair(one.tokens, one.micros) < std::pair(other.tokens, other.micros);
        });
    while (2 * base <= limits_.max_chunk_tokens) {
      const int64_t turn_us = ExpectedMicros({largest}, static_cast<int>(2 * base * 7 / 8));
      if (!FitsInto(2 * base, room_tokens, turns_left) || turn_us * turns_left > left_us) break;
      base *= 2;
    }
    return base;
  }

  Prompt& prompt_;
  const SweepLimits& limits_;
  const int page_size_;
  const int64_t room_tokens_;  // Behind the first page.
  const std::function<absl::Status(SweepWord)>& tell_;
  const int64_t end_us_;
};

}  // namespace

SweepResult FitSamples(std::vector<SweepSample> samples) {
  SweepResult result;
  result.samples = std::move(samples);
  if (result.samples.size() < kLeastSamples) {
    result.missing = absl::StrCat("only ", result.samples.size(), " chunks in the time for it");
    return result;
  }
  // The fit leaves its first plan out, which here was: so that it is none of these, it sees the
  // last one twice.
  CostFit fit;
  const auto add = [&fit](const SweepSample& sample) {
    PlanWork work;
    work.Add(sample.prefix_length, sample.tokens);
    fit.Add(work, sample.micros);
  };
  add(result.samples.back());
  for (int round = 0; round < kRounds; ++round) {
    for (const SweepSample& sample : result.samples) add(sample);
  }
  const std::optional<StageCost> cost = fit.cost();
  if (!cost) {
    result.missing = fit.missing();
    return result;
  }
  double off = 0;
  for (const SweepSample& sample : result.samples) {
    const auto micros = static_cast<double>(std::max<int64_t>(sample.micros, 1));
    off += std::min(std::abs(cost->Micros(sample.prefix_length, sample.tokens) / micros - 1), 1.0);
  }
  const double error = off / static_cast<double>(result.samples.size());
  if (error > CostFit::kLargestError) {
    result.missing = "chunks take other times than their sizes say";
    return result;
  }
  result.cost = {*cost, error};
  return result;
}

SweepResult SweepCosts(Executor& executor, const SweepLimits& limits,
                       const std::function<absl::Status(SweepWord)>& tell) {
  const int page_size = executor.kv().page_size;
  const int64_t pages =
      std::min<int64_t>(executor.kv().page_count, limits.max_context_tokens / page_size);
  // No more than all turns could take: other ranks may have fewer pages.
  const int64_t room_tokens =
      std::min((pages - 1) * page_size, int64_t{kTurns} * limits.max_chunk_tokens * 7 / 8);
  const std::vector<int> first =
      TurnChunks(page_size, FirstBase(limits.max_chunk_tokens, room_tokens));
  if (first.empty()) return {std::nullopt, "no room for chunks of different sizes", {}};
  const auto tokens = static_cast<int>(page_size + room_tokens);
  // As none is larger than half of a plan, or of what there is room for.
  const int largest = std::min(std::max(limits.max_chunk_tokens / 2, page_size), tokens);
  auto prompt = Prompt::Create(executor, tokens, largest);
  if (!prompt.ok()) return {std::nullopt, std::string(prompt.status().message()), {}};
  std::vector<SweepSample> samples;
  absl::Status status = tell ? tell({tokens, largest}) : absl::OkStatus();
  if (status.ok()) {
    status = Measurement(**prompt, limits, page_size, room_tokens, tell).Run(samples);
  }
  if (!status.ok()) return {std::nullopt, std::string(status.message()), std::move(samples)};
  return FitSamples(std::move(samples));
}

absl::Status FollowSweep(Executor& executor,
                         const std::function<absl::StatusOr<SweepWord>()>& hear) {
  BATON_ASSIGN_OR_RETURN(SweepWord word, hear());
  if (word.chunk_tokens == 0) return absl::OkStatus();
  const SweepWord all = word;
  const int64_t room = int64_t{executor.kv().page_count} * executor.kv().page_size;
  if (all.chunk_tokens < 0 || all.chunk_tokens > all.prompt_tokens || all.prompt_tokens > room) {
    return absl::InvalidArgumentError(absl::StrCat("a sweep over ", all.prompt_tokens,
                                                   " tokens in chunks of ", all.chunk_tokens,
                                                   ", and there are pages for ", room));
  }
  BATON_ASSIGN_OR_RETURN(const auto prompt,
                         Prompt::Create(executor, all.prompt_tokens, all.chunk_tokens));
  while (true) {
    BATON_ASSIGN_OR_RETURN(word, hear());
    if (word.chunk_tokens == 0) return absl::OkStatus();
    const int left = all.prompt_tokens - prompt->done_tokens();
    if (word.prompt_tokens != prompt->done_tokens() || word.chunk_tokens < 0 ||
        word.chunk_tokens > std::min(left, all.chunk_tokens)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a chunk of ", word.chunk_tokens, " tokens at ", word.prompt_tokens,
                       " in a sweep that has come to ", prompt->done_tokens()));
    }
    BATON_RETURN_IF_ERROR(prompt->Run(word.chunk_tokens).status());
  }
}

std::string SweepText(const SweepResult& result, int64_t took_us) {
  return absl::StrCat("measured ", result.samples.size(), " chunks in ", took_us / 1000, " ms: ",
                      result.cost ? absl::StrCat("what they cost is known to within ",
                                                 std::ceil(100 * result.cost->error), " %")
                                  : absl::StrCat("not used, ", result.missing));
}

namespace {

// Tokens are whole numbers that a float has exactly: no context is longer than 2^24.
using Words = std::array<float, 2>;

absl::Status Broadcast(Communicator& group, Words& words) {
  Pending pending;
  group.Broadcast(HostTensor(std::span<float>(words), words.size()), 0, pending.Add());
  return Annotate(pending.Wait(), "measuring what chunks cost");
}

absl::Status Tell(Communicator& group, SweepWord word) {
  Words words = {static_cast<float>(word.prompt_tokens), static_cast<float>(word.chunk_tokens)};
  return Broadcast(group, words);
}

absl::StatusOr<SweepWord> Hear(Communicator& group) {
  Words words = {};
  BATON_RETURN_IF_ERROR(Broadcast(group, words));
  const auto tokens = [](float word) {
    return word >= 0 && word <= 1 << 24 ? static_cast<int>(word) : -1;
  };
  return SweepWord{tokens(words[0]), tokens(words[1])};
}

}  // namespace

absl::Status RankSweep::Run(Communicator& group) {
  if (group.group().rank != 0) return FollowSweep(*executor_, [&] { return Hear(group); });
  if (!limits_ || std::exchange(tried_, true)) return Tell(group, {});
  const int64_t start_us = NowUs();
  SweepLimits limits = *limits_;
  limits.budget_us = std::min(limits.budget_us, kLongestRankSweepUs);
  const SweepResult result =
      SweepCosts(*executor_, limits, [&](SweepWord word) { return Tell(group, word); });
  LOG(kInfo) << group.group().size() << " ranks " << SweepText(result, NowUs() - start_us);
  {
    MutexLock lock(&mutex_);
    cost_ = result.cost;
  }
  return Tell(group, {});
}

std::optional<KnownCost> RankSweep::cost() const {
  MutexLock lock(&mutex_);
  return cost_;
}

}  // namespace baton::prefill
