#include "services/prefill/testing/fake_model.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"

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

FakeModel::FakeModel(int layer_begin, int layer_end, int page_count) {
  config_.hidden_size = kFakeHidden;
  config_.num_hidden_layers = kFakeLayers;
  config_.num_key_value_heads = kFakeKvHeads;
  config_.head_dim = kFakeHeadDim;
  config_.vocab_size = kFakeVocab;
  config_.max_position_embeddings = 1 << 20;
  kv_.layer_begin = layer_begin;
  kv_.layer_end = layer_end;
  kv_.kv_heads = kFakeKvHeads;
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
      for (int head = 0; head < kFakeKvHeads; ++head) {
        const int run = (layer * 2 + kv) * kFakeKvHeads + head;
        for (int dim = 0; dim < kFakeHeadDim; ++dim) {
          values[(run * kFakePageSize + slot) * kFakeHeadDim + dim] =
              FakeKv(token, position, kv_.layer_begin + layer, kv, head, dim);
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

absl::Status FakeModel::Forward(const Batch& batch, const TensorView& in_view,
                                const TensorView& out_view, std::span<float> logits) {
  if (before_forward) before_forward();
  const std::span<const float> in = Floats(in_view);
  const std::span<float> out = Floats(out_view);
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
        if (!out.empty()) out[row * kFakeHidden + h] = expected;
      }
      const int position = slice.prefix_length + i;
      WriteKv(slice.pages[static_cast<size_t>(position / kFakePageSize)], token, position);
    }
    if (slice.on_logits != nullptr)
      TellLogits(slice, in, row - static_cast<size_t>(slice.token_count));
    if (!slice.wants_logits) continue;
    const auto scores = logits.subspan(logits_row++ * kFakeVocab, kFakeVocab);
    std::fill(scores.begin(), scores.end(), 0.0F);
    scores[static_cast<size_t>(FakeFirstToken(token, slice.prefix_length + slice.token_count))] =
        30.0F;
  }
  return absl::OkStatus();
}

}  // namespace baton::prefill
