#include "common/engine/tensor_ops.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>

#include <cstring>

#include "common/base/check.h"

namespace baton {
namespace {

at::ScalarType TorchType(DType dtype) {
  BATON_CHECK(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16)
      << "FindWeight admits no " << DTypeName(dtype);
  return dtype == DType::kF32 ? at::kFloat : dtype == DType::kBF16 ? at::kBFloat16 : at::kHalf;
}

// A view of mapped bytes, which torch only reads; its interface has no const. Files by unusual
// writers may hold tensors at odd addresses, which torch must not read as elements: those are
// copied.
at::Tensor View(const TensorView& tensor, int64_t first, at::IntArrayRef shape) {
  const size_t element_bytes = DTypeBytes(tensor.dtype);
  const std::byte* at = tensor.bytes.data() + static_cast<size_t>(first) * element_bytes;
  if (reinterpret_cast<uintptr_t>(at) % element_bytes == 0) {
    return at::from_blob(const_cast<std::byte*>(at), shape, TorchType(tensor.dtype));
  }
  at::Tensor copy = at::empty(shape, TorchType(tensor.dtype));
  std::memcpy(copy.data_ptr(), at, static_cast<size_t>(copy.numel()) * element_bytes);
  return copy;
}

}  // namespace

void ConvertToFloat(const TensorView& tensor, int64_t first, std::span<float> out) {
  const auto count = static_cast<int64_t>(out.size());
  at::from_blob(out.data(), {count}, at::kFloat).copy_(View(tensor, first, {count}));
}

struct EmbeddingTable::Rep {
  at::Tensor table;
};

EmbeddingTable::EmbeddingTable(const TensorView& table)
    : rep_(std::make_unique<Rep>(Rep{View(table, 0, table.shape)})) {}

EmbeddingTable::~EmbeddingTable() = default;

void EmbeddingTable::Gather(std::span<const int32_t> tokens, float* out) const {
  const auto count = static_cast<int64_t>(tokens.size());
  const at::Tensor ids = at::from_blob(const_cast<int32_t*>(tokens.data()), {count}, at::kInt);
  at::from_blob(out, {count, rep_->table.size(1)}, at::kFloat)
      .copy_(at::index_select(rep_->table, 0, ids));
}

void SetTensorThreads(int threads) { at::set_num_threads(threads); }

}  // namespace baton
