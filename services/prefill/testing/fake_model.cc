#include "services/prefill/testing/fake_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "common/collective/communicator.h"

namespace baton::prefill {
namespace {

// The activation of `token`, component `index`; component 0 is the token itself.
float FakeActivation(int token, size_t index) {
  return static_cast<float>(token) + static_cast<float>(index) * 0.5F;
}

}  // namespace

float FakeKv(int token, int position, int layer, int kv, int head, int dim) {
  uint64_t mixed = Mix64(static_cast<uint64_t>(token));
  for (const int part : {position, layer, kv, head, dim}) {
    mixed = Mix64(mixed ^ static_cast<uint64_t>(part));
  }
  return static_cast<float>(1 + (mixed & 0xFFFFF));
}

int FakeFirstToken(int last_token, int prompt_tokens) {
  return (last_token * 7 + prompt_tokens) % kFakeVocab;
}

FakeModel::FakeModel(int layer_begin, int layer_end, int page_count, TensorRank rank)
    : rank_(rank) {
  config_.hidden_size = kFakeHidden;
  config_.num_hidden_layers = kFakeLayers;
  config_.num_key_value_heads = kFakeKvHeads;
  config_.head_dim = kFakeHeadDim;
  config_.vocab_size = kFakeVocab;
  config_.max_position_embeddings = 1 << 20;
  kv_.layer_begin = layer_begin;
  kv_.layer_end = layer_end;
  const IndexRange heads = KvHeadsOf(kFakeKvHeads, rank);
  kv_.head_begin = heads.begin;
  kv_.kv_heads = heads.size();
  kv_.head_dim = kFakeHeadDim;
  kv_.page_size = kFakePageSize;
  kv_.page_count = page_count;
  // What was there before must never travel.
  pages_.assign(static_cast<size_t>(page_count) * kv_.PageBytes() / sizeof(float), -1.0F);
  kv_memory_ = std::make_unique<HostKvMemory>(kv_, std::as_writable_bytes(std::span(pages_)));
}

void FakeModel::WriteKv(int page, int token, int position) {
  float* const values = &pages_[static_cast<size_t>(page) * kv_.PageBytes() / sizeof(float)];
  const int slot = position % kFakePageSize;
  for (int layer = 0; layer < kv_.layers(); ++layer) {
    for (int kv = 0; kv < 2; ++kv) {
      for (int head = 0; head < kv_.kv_heads; ++head) {
        const int run = (layer * 2 + kv) * kv_.kv_heads + head;
        for (int dim = 0; dim < kFakeHeadDim; ++dim) {
          values[(run * kFakePageSize + slot) * kFakeHeadDim + dim] =
              FakeKv(token, position, kv_.layer_begin + layer, kv, kv_.head_begin + head, dim);
        }
      }
    }
  }
}

// Two rows at a time.
void FakeModel::TellLogits(const SequenceSlice& slice, std::span<const float> in,
                           size_t row) const {
  for (int first = 0; first < slice.token_count; first += 2) {
    const int rows = std::min(2, slice.token_count - first);
    std::vector<float> logits(static_cast<size_t>(rows) * kFakeVocab, 0.0F);
    for (int i = 0; i < rows; ++i) {
      const auto at = static_cast<size_t>(first) + static_cast<size_t>(i);
      const int token =
          first_stage() ? slice.tokens[at] : static_cast<int>(in[(row + at) * kFakeHidden]);
      const int likely = FakeFirstToken(token, slice.prefix_length + first + i + 1);
      logits[static_cast<size_t>(i) * kFakeVocab + static_cast<size_t>(likely)] = 30.0F;
    }
    slice.on_logits(first, logits);
  }
}

absl::Status FakeModel::JoinGroup(std::shared_ptr<Communicator> group) {
  group_ = std::move(group);
  return absl::OkStatus();
}

void FakeModel::EndGroup(const absl::Status& why) {
  if (group_ != nullptr) group_->Abort(why);
}

absl::Status FakeModel::Gather(const TensorView& in, std::vector<float>& whole) {
  const std::span<const float> part = Floats(in);
  if (rank_.alone() || part.empty()) {
    whole.assign(part.begin(), part.end());
    return absl::OkStatus();
  }
  whole.resize(part.size() * static_cast<size_t>(rank_.size));
  Pending pending;
  group_->AllGather(in, HostTensor(std::span(whole), kFakeHidden), pending.Add());
  return pending.Wait();
}

absl::Status FakeModel::Sum(std::span<float> values) {
  if (rank_.alone() || values.empty()) return absl::OkStatus();
  for (float& value : values) value /= static_cast<float>(rank_.size);
  Pending pending;
  group_->AllReduce(HostTensor(values, static_cast<int64_t>(values.size())), pending.Add());
  return pending.Wait();
}

absl::Status FakeModel::Forward(const Batch& batch, const TensorView& in_view,
                                const TensorView& out_view, std::span<float> logits) {
  if (before_forward) before_forward();
  if (!rank_.alone() && group_ == nullptr) {
    return absl::FailedPreconditionError("has joined no group");
  }
  std::vector<float> in;
  BATON_RETURN_IF_ERROR(Gather(in_view, in));
  std::vector<float> out(static_cast<size_t>(batch.TokenCount()) * kFakeHidden);
  size_t row = 0;
  size_t logits_row = 0;
  for (const SequenceSlice& slice : batch.slices) {
    int token = 0;
    for (int i = 0; i < slice.token_count; ++i, ++row) {
      token = first_stage() ? slice.tokens[static_cast<size_t>(i)]
                            : static_cast<int>(in[row * kFakeHidden]);
      for (size_t h = 0; h < kFakeHidden; ++h) {
        const float expected = FakeActivation(token, h);
        if (!first_stage() && in[row * kFakeHidden + h] != expected) {
          return absl::DataLossError(absl::StrCat("activation ", h, " of row ", row, " is ",
                                                  in[row * kFakeHidden + h], ", not ", expected));
        }
        out[row * kFakeHidden + h] = expected;
      }
      const int position = slice.prefix_length + i;
      WriteKv(slice.pages[static_cast<size_t>(position / kFakePageSize)], token, position);
    }
    if (slice.on_logits != nullptr && tells_logits())
      TellLogits(slice, in, row - static_cast<size_t>(slice.token_count));
    if (!slice.wants_logits || !tells_logits()) continue;
    const auto scores = logits.subspan(logits_row++ * kFakeVocab, kFakeVocab);
    std::fill(scores.begin(), scores.end(), 0.0F);
    scores[static_cast<size_t>(FakeFirstToken(token, slice.prefix_length + slice.token_count))] =
        30.0F;
  }
  BATON_RETURN_IF_ERROR(Sum(out));
  const std::span<float> mine = Floats(out_view);
  if (mine.empty()) return absl::OkStatus();
  std::copy_n(&out[static_cast<size_t>(rank_.rank) * mine.size()], mine.size(), mine.begin());
  return absl::OkStatus();
}

}  // namespace baton::prefill
