#include "common/engine/timed/timed_stage_model.h"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/engine/stage_model.h"
#include "common/engine/weights/stage_setup.h"

namespace baton {
namespace {

// Wake-ups were late by up to this on the measured machines; for this long the thread polls the
// clock.
constexpr int64_t kAwakeUs = 60;

// Waits until `deadline_us` of NowUs()'s clock, to within some ten microseconds. Sleeps until just
// before the end, then polls the clock: a sleeper on a virtual machine wakes too late.
void WaitUntilUs(int64_t deadline_us) {
  // The kernel may delay a thread's timers by 50 us, to wake several threads at once.
  thread_local const int slack_set = prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  (void)slack_set;  // If it is refused, waits are a little longer.
  int64_t left_us = deadline_us - NowUs();
  while (left_us > kAwakeUs) {
    const int64_t sleep_us = left_us - kAwakeUs;
    const timespec duration{static_cast<time_t>(sleep_us / 1'000'000),
                            static_cast<long>(sleep_us % 1'000'000 * 1000)};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &duration, nullptr);  // A signal only ends it early.
    left_us = deadline_us - NowUs();
  }
  while (NowUs() < deadline_us) std::this_thread::yield();
}

// The first bytes of a row of activations.
struct Row {
  uint64_t word = 0;
  int32_t token = 0;
};
static_assert(8 * sizeof(uint16_t) >= sizeof(uint64_t) + sizeof(int32_t), "the narrowest row");
constexpr float kCertain = 30;  // The logit of the next token; all others are 0.

Row ReadRow(std::span<const std::byte> activations, size_t row, size_t row_bytes) {
  Row read;
  const std::byte* const at = activations.data() + row * row_bytes;
  std::memcpy(&read.word, at, sizeof(read.word));
  std::memcpy(&read.token, at + sizeof(read.word), sizeof(read.token));
  return read;
}

void WriteRow(std::span<std::byte> activations, size_t row, size_t row_bytes, const Row& value) {
  std::byte* const at = activations.data() + row * row_bytes;
  std::memcpy(at, &value.word, sizeof(value.word));
  std::memcpy(at + sizeof(value.word), &value.token, sizeof(value.token));
}

TimedStep StepOf(const Batch& batch) {
  TimedStep step;
  for (const SequenceSlice& slice : batch.slices) step.Add(slice.prefix_length, slice.token_count);
  return step;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StageModel>> TimedStageModel::Create(
    const ExecutorOptions& options) {
  if (options.timed_profile.empty()) {
    return InvalidField("timed_profile", "is empty; the timed executor plays what a profile says");
  }
  BATON_ASSIGN_OR_RETURN(TimedProfile profile, LoadTimedProfile(options.timed_profile));
  BATON_ASSIGN_OR_RETURN(ModelConfig config,
                         LoadModelConfig(options.model_path, options.context_tokens));
  config = profile.Apply(std::move(config));
  BATON_ASSIGN_OR_RETURN(StagePart part, PartOf(options, config));
  part.kv.element_type = options.kv_dtype.value_or(profile.kv_dtype);
  profile.dtype = options.dtype.value_or(profile.dtype);
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<KvPool> pool, KvPool::Create(part.kv));
  if (options.on_progress) options.on_progress(1);
  return std::make_unique<TimedStageModel>(profile, std::move(config), std::move(pool),
                                           part.shard.rank,
                                           options.slice_activations && !part.shard.rank.alone());
}

TimedStageModel::TimedStageModel(const TimedProfile& profile, ModelConfig config,
                                 std::unique_ptr<KvPool> pool, TensorRank rank, bool sliced)
    : profile_(profile),
      config_(std::move(config)),
      rank_(rank),
      sliced_(sliced),
      steps_(profile, {pool->geometry().layer_begin, pool->geometry().layer_end}),
      pool_(std::move(pool)),
      kv_memory_(pool_->geometry(), pool_->Bytes()),
      group_(rank, /*options=*/{}, /*hidden=*/0) {}

// A step writes only the first bytes of each row, but whole rows are sent. Bytes that were never
// written would be read from the kernel's single page of zeros, which is always in the cache.
absl::StatusOr<MemoryBuffer> TimedStageModel::AllocateActivations(size_t bytes) {
  BATON_ASSIGN_OR_RETURN(MemoryBuffer buffer, AllocateHost(bytes));
  std::fill_n(buffer.span().data, bytes, std::byte{1});
  return buffer;
}

absl::Status TimedStageModel::JoinGroup(std::shared_ptr<Communicator> group) {
  if (group_.alone()) return StageModel::JoinGroup(std::move(group));
  return group_.Join(std::move(group), /*multiply=*/nullptr);
}

// The key of a token in one head.
std::byte* TimedStageModel::Slot(int page, int layer, int head, int position) {
  const KvGeometry& kv = pool_->geometry();
  const size_t token_bytes = static_cast<size_t>(kv.head_dim) * ElementBytes(kv.element_type);
  return pool_->Keys<std::byte>(page, layer, head) +
         static_cast<size_t>(position % kv.page_size) * token_bytes;
}

// The word before the slice. Every head of every layer holds it, so that a missing part of a
// hand-off is detected, whichever process should have sent it.
absl::StatusOr<uint64_t> TimedStageModel::WordBefore(const SequenceSlice& slice) {
  if (slice.prefix_length == 0) return kTimedRoot;
  const int position = slice.prefix_length - 1;
  const int page = slice.pages[static_cast<size_t>(position / kv().page_size)];
  uint64_t word = 0;
  for (int layer = kv().layer_begin; layer < kv().layer_end; ++layer) {
    for (int head = 0; head < kv().kv_heads; ++head) {
      uint64_t stored = 0;
      std::memcpy(&stored, Slot(page, layer, head, position), sizeof(stored));
      const bool first = layer == kv().layer_begin && head == 0;
      if (!first && stored != word) {
        return absl::DataLossError(absl::StrCat(
            "the KV of position ", position, " in layer ", layer, ", head ", kv().head_begin + head,
            ", is not that of layer ", kv().layer_begin, ", head ", kv().head_begin));
      }
      word = stored;
    }
  }
  return word;
}

uint64_t TimedStageModel::MilestonesBefore(const SequenceSlice& slice, int position) {
  uint64_t sum = 0;
  for (int at = kTimedMilestone - 1; at < position; at += kTimedMilestone) {
    const int page = slice.pages[static_cast<size_t>(at / kv().page_size)];
    uint64_t word = 0;
    std::memcpy(&word, Slot(page, kv().layer_begin, 0, at), sizeof(word));
    sum = AddMilestone(sum, word, at);
  }
  return sum;
}

void TimedStageModel::TellLogits(const SequenceSlice& slice, int first, uint64_t word,
                                 int position) {
  std::vector<float> logits(static_cast<size_t>(config_.vocab_size), 0.0F);
  const int32_t likely = NextTimedToken(word, MilestonesBefore(slice, position), config_.vocab_size,
                                        config_.eos_token_ids);
  logits[static_cast<size_t>(likely)] = kCertain;
  slice.on_logits(first, logits);
}

// `row` is the batch's row of the slice's first token. `next` becomes the token after the slice's
// last one. `words` accumulates the words of all slices.
absl::Status TimedStageModel::Play(const SequenceSlice& slice, std::span<const std::byte> in,
                                   std::span<std::byte> out, size_t row, int32_t& next,
                                   uint64_t& words) {
  BATON_ASSIGN_OR_RETURN(uint64_t word, WordBefore(slice));
  const size_t row_bytes =
      static_cast<size_t>(config_.hidden_size) * ElementBytes(activation_type());
  int position = slice.prefix_length;
  for (int i = 0; i < slice.token_count; ++i, ++position, ++row) {
    Row came;
    if (first_stage()) {
      came.token = slice.tokens[static_cast<size_t>(i)];
    } else {
      came = ReadRow(in, row, row_bytes);
    }
    word = TimedWord(word, came.token, position);
    if (!first_stage() && came.word != word) {
      return absl::DataLossError(absl::StrCat("the activations of position ", position,
                                              " do not follow from the KV before it"));
    }
    if (!out.empty()) WriteRow(out, row, row_bytes, {word, came.token});
    const int page = slice.pages[static_cast<size_t>(position / kv().page_size)];
    for (int layer = kv().layer_begin; layer < kv().layer_end; ++layer) {
      for (int head = 0; head < kv().kv_heads; ++head) {
        std::memcpy(Slot(page, layer, head, position), &word, sizeof(word));
      }
    }
    if (slice.on_logits != nullptr && tells_logits()) TellLogits(slice, i, word, position);
  }
  words = Mix64(words ^ word);  // The last word depends on all before it.
  if (last_stage()) {
    next = NextTimedToken(word, MilestonesBefore(slice, position - 1), config_.vocab_size,
                          config_.eos_token_ids);
  }
  return absl::OkStatus();
}

double TimedStageModel::Micros(const Batch& batch) const { return steps_.Micros(StepOf(batch)); }

absl::Status TimedStageModel::Forward(const Batch& batch, const TensorView& in,
                                      const TensorView& out, std::span<float> logits) {
  BATON_RETURN_IF_ERROR(Validate(batch, in, out, logits.size()));
  absl::Status status = Compute(batch, in, out, logits);
  if (!status.ok()) {
    group_.Fail(status);
    return status;
  }
  const int64_t end_us = std::max(batch.submitted_us, free_us_) + steps_.NextMicros(StepOf(batch));
  free_us_ = std::max(end_us, NowUs());
  WaitUntilUs(end_us);
  return absl::OkStatus();
}

absl::Status TimedStageModel::Compute(const Batch& batch, const TensorView& in,
                                      const TensorView& out, std::span<float> logits) {
  if (!group_.alone()) BATON_RETURN_IF_ERROR(group_.Begin(batch.TokenCount()));
  std::fill(logits.begin(), logits.end(), 0.0F);
  BATON_ASSIGN_OR_RETURN(const std::span<const std::byte> input, TakeInput(in));
  const std::span<std::byte> output = WholeOutput(out);
  size_t row = 0;
  size_t logits_row = 0;
  uint64_t words = kTimedRoot;
  for (const SequenceSlice& slice : batch.slices) {
    int32_t next = 0;
    BATON_RETURN_IF_ERROR(Play(slice, input, output, row, next, words));
    row += static_cast<size_t>(slice.token_count);
    if (!slice.wants_logits || !tells_logits()) continue;
    const auto vocab = static_cast<size_t>(config_.vocab_size);
    logits[logits_row++ * vocab + static_cast<size_t>(next)] = kCertain;
  }
  if (sliced_) GiveOutput(output, out);
  return group_.alone() ? absl::OkStatus() : CompareWords(words);
}

absl::StatusOr<std::span<const std::byte>> TimedStageModel::TakeInput(const TensorView& in) {
  if (in.empty()) return std::span<const std::byte>();
  if (!sliced_) return in.memory.Host();
  whole_in_.resize(in.bytes() * static_cast<size_t>(rank_.size));
  const TensorView whole = {HostSpan(whole_in_), in.type, in.rows, config_.hidden_size};
  BATON_RETURN_IF_ERROR(group_.GatherParts(in, whole));
  return std::span<const std::byte>(whole_in_);
}

std::span<std::byte> TimedStageModel::WholeOutput(const TensorView& out) {
  if (out.empty()) return {};
  if (!sliced_) return out.memory.Host();
  whole_out_.resize(out.bytes() * static_cast<size_t>(rank_.size));
  return whole_out_;
}

// A slice is a contiguous part of all elements (stage_model.h).
void TimedStageModel::GiveOutput(std::span<const std::byte> whole, const TensorView& out) const {
  if (out.empty()) return;
  const size_t bytes = out.bytes();
  std::memcpy(out.memory.Host().data(),
              whole.subspan(static_cast<size_t>(rank_.rank) * bytes, bytes).data(), bytes);
}

// float32 holds the sum of 64 ranks' 16-bit values exactly. If each rank finds in the sums its own
// words times the number of ranks, all ranks have the same words.
absl::Status TimedStageModel::CompareWords(uint64_t words) {
  std::array<float, 4> mine{};
  for (size_t i = 0; i < mine.size(); ++i) {
    mine[i] = static_cast<float>((words >> (16 * i)) & 0xFFFF);
  }
  std::array<float, 4> sums = mine;
  BATON_RETURN_IF_ERROR(group_.Sum(sums));
  for (size_t i = 0; i < mine.size(); ++i) {
    if (sums[i] == mine[i] * static_cast<float>(rank_.size)) continue;
    return absl::DataLossError(absl::StrCat("the words of this step on rank ", rank_.rank, " of ",
                                            rank_.size, " are not those of the other ranks"));
  }
  return absl::OkStatus();
}

}  // namespace baton
