#include "common/engine/stage_model.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/engine/kernels/bf16_products.h"

namespace baton {

const kernels::Bf16Products* ProductsOf(const ExecutorOptions& options, ElementType weights) {
  const bool own = options.numerics == CpuNumerics::kAuto && options.kernels.empty() &&
                   options.backend == Backend::kNative &&
                   options.linear == LinearBackend::kNative && weights == ElementType::kBFloat16;
  return own ? kernels::FastestBf16Products() : nullptr;
}

std::string_view NumericsOf(const ExecutorOptions& options, ElementType weights) {
  const kernels::Bf16Products* products = ProductsOf(options, weights);
  return products == nullptr ? "" : products->name;
}

namespace {

absl::Status ValidateSlice(const SequenceSlice& slice, const ModelConfig& config,
                           const KvGeometry& kv) {
  if (slice.token_count <= 0 || slice.prefix_length < 0 ||
      slice.token_count > config.max_position_embeddings ||
      slice.prefix_length > config.max_position_embeddings - slice.token_count) {
    return absl::InvalidArgumentError(absl::StrCat(
        "token_count ", slice.token_count, " after prefix_length ", slice.prefix_length,
        " must be positions of a sequence of at most ", config.max_position_embeddings, " tokens"));
  }
  const int end = slice.prefix_length + slice.token_count;
  const auto pages = static_cast<size_t>((int64_t{end} + kv.page_size - 1) / kv.page_size);
  if (slice.pages.size() < pages) {
    return absl::InvalidArgumentError(absl::StrCat(slice.pages.size(), " pages of ", kv.page_size,
                                                   " tokens do not hold ", end, " tokens"));
  }
  for (const int32_t page : slice.pages.first(pages)) {
    if (page < 0 || page >= kv.page_count) {
      return absl::InvalidArgumentError(
          absl::StrCat("page ", page, " is not among the pool's ", kv.page_count));
    }
  }
  if (kv.layer_begin > 0) return absl::OkStatus();
  if (slice.tokens.size() != static_cast<size_t>(slice.token_count)) {
    return absl::InvalidArgumentError(
        absl::StrCat(slice.tokens.size(), " token ids given for token_count ", slice.token_count));
  }
  for (const int32_t token : slice.tokens) {
    if (token < 0 || token >= config.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("token id ", token, " is outside the vocabulary of ", config.vocab_size));
    }
  }
  return absl::OkStatus();
}

absl::Status ExpectShape(const char* what, const TensorView& view, const TensorView& expected) {
  if (expected.empty() && view.empty()) return absl::OkStatus();
  if (view.rows != expected.rows || view.columns != expected.columns ||
      view.type != expected.type) {
    return absl::InvalidArgumentError(
        absl::StrCat("`", what, "` is ", view.ToString(), ", must be [", expected.rows, ", ",
                     expected.columns, "] ", ElementTypeName(expected.type)));
  }
  if (view.memory.bytes == view.bytes()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("`", what, "` is ", view.ToString(), " of ",
                                                 view.memory.bytes, " bytes, must have ",
                                                 view.bytes()));
}

}  // namespace

absl::Status StageModel::Validate(const Batch& batch, const TensorView& in, const TensorView& out,
                                  size_t logits) const {
  int64_t tokens = 0;
  size_t wanted = 0;
  bool wanted_anywhere = false;
  for (size_t i = 0; i < batch.slices.size(); ++i) {
    const SequenceSlice& slice = batch.slices[i];
    BATON_RETURN_IF_ERROR(
        Annotate(ValidateSlice(slice, config(), kv()), absl::StrCat("slice ", i)));
    tokens += slice.token_count;
    wanted += slice.wants_logits ? 1 : 0;
    wanted_anywhere = wanted_anywhere || slice.wants_row() || slice.on_logits != nullptr;
    if (slice.wants_logits && slice.drawn != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("slice ", i, " wants its logits and a draw from them"));
    }
  }
  if (tokens == 0 || tokens > INT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat("a batch of ", tokens, " tokens"));
  }
  if (wanted_anywhere && !last_stage()) {
    return absl::InvalidArgumentError("only the last stage computes logits");
  }
  const TensorView none;
  const TensorView activations{{}, activation_type(), tokens, activation_columns()};
  BATON_RETURN_IF_ERROR(ExpectShape("in", in, first_stage() ? none : activations));
  BATON_RETURN_IF_ERROR(ExpectShape("out", out, last_stage() ? none : activations));
  const size_t expected = tells_logits() ? wanted * static_cast<size_t>(config().vocab_size) : 0;
  if (logits == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("`logits` has ", logits, " floats, must have ", expected));
}

}  // namespace baton
