#include "services/prefill/stage/input_buffers.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/status.h"

namespace baton::prefill {
namespace {

size_t PiecesOf(const ActivationHeader& header) {
  return (header.total_bytes() + kActivationPieceBytes - 1) / kActivationPieceBytes;
}

absl::Status Refused(uint64_t number, const std::string& what) {
  return absl::FailedPreconditionError(absl::StrCat("activations of plan ", number, ": ", what));
}

}  // namespace

InputBuffers::InputBuffers(const Shape& shape, std::vector<MemoryBuffer> buffers) : shape_(shape) {
  inputs_.resize(buffers.size());
  for (size_t i = 0; i < buffers.size(); ++i) inputs_[i].data = std::move(buffers[i]);
}

absl::StatusOr<InputBuffers::Input*> InputBuffers::Claim(uint64_t number, int64_t now_us) {
  if (inputs_.empty()) return Refused(number, "this stage takes none");
  if (number == 0) return Refused(number, "plans are counted from 1 on");
  Input& input = inputs_[Slot(number)];
  if (input.number == 0) {
    input.number = number;
    input.tokens = 0;
    input.since_us = now_us;
    input.came.clear();
    input.placed = 0;
    input.check = std::make_shared<InputCheck>(number);
  }
  if (input.number == number) return &input;
  return Refused(number, absl::StrCat("plan ", input.number, " has the buffer"));
}

absl::StatusOr<MemorySpan> InputBuffers::Accept(const ActivationHeader& header,
                                                size_t payload_bytes, int64_t now_us) {
  if (header.bytes != payload_bytes) {
    return Refused(header.number,
                   absl::StrCat(payload_bytes, " bytes came, announced were ", header.bytes));
  }
  if (header.hidden_size != static_cast<uint32_t>(shape_.columns) || header.type != shape_.type ||
      header.tokens > static_cast<uint32_t>(shape_.max_tokens)) {
    return Refused(header.number, absl::StrCat("shape [", header.tokens, ", ", header.hidden_size,
                                               "] ", ElementTypeName(header.type),
                                               ", expected at most [", shape_.max_tokens, ", ",
                                               shape_.columns, "] ", ElementTypeName(shape_.type)));
  }
  BATON_ASSIGN_OR_RETURN(Input* const input, Claim(header.number, now_us));
  if (input->came.empty()) {
    input->tokens = header.tokens;
    input->came.assign(PiecesOf(header), false);
  }
  const size_t piece = header.offset / kActivationPieceBytes;
  if (input->tokens != header.tokens || input->came[piece]) {
    return Refused(header.number,
                   absl::StrCat("piece ", piece, " of [", header.tokens, ", ", header.hidden_size,
                                "] came twice or is of another shape"));
  }
  input->came[piece] = true;
  return input->data.span().Sub(header.offset, payload_bytes);
}

absl::StatusOr<std::shared_ptr<InputCheck>> InputBuffers::Accept(const ActivationSum& sum,
                                                                 int64_t now_us) {
  BATON_ASSIGN_OR_RETURN(Input* const input, Claim(sum.number, now_us));
  return input->check;
}

std::optional<InputBuffers::Whole> InputBuffers::Placed(const ActivationHeader& header) {
  Input& input = inputs_[Slot(header.number)];
  BATON_CHECK(input.number == header.number && input.placed < input.came.size())
      << "plan " << header.number << " in the buffer of " << input.number << ", of which "
      << input.placed << " pieces are there";
  if (++input.placed < input.came.size()) return std::nullopt;
  return WholeOf(input, header.total_bytes());
}

InputBuffers::Whole InputBuffers::WholeOf(const Input& input, size_t bytes) {
  return {input.since_us, input.data.span().Sub(0, bytes), input.check};
}

absl::StatusOr<InputBuffers::Whole> InputBuffers::Of(uint64_t number, int tokens) const {
  const Input& input = inputs_[Slot(number)];
  if (input.number != number || input.tokens != static_cast<uint32_t>(tokens)) {
    return absl::InternalError(absl::StrCat("plan ", number, " has ", tokens,
                                            " tokens, its activations are ", input.tokens,
                                            " tokens of plan ", input.number));
  }
  return WholeOf(input, static_cast<size_t>(tokens) * static_cast<size_t>(shape_.columns) *
                            ElementBytes(shape_.type));
}

void InputBuffers::Free(uint64_t number) {
  Input& input = inputs_[Slot(number)];
  BATON_CHECK(input.number == number)
      << "plan " << number << ", plan " << input.number << " has it";
  input.number = 0;
}

int64_t InputBuffers::receiving_since_us() const {
  int64_t since_us = kNeverUs;
  for (const Input& input : inputs_) {
    if (input.number == 0 || input.placed == input.came.size()) continue;
    since_us = std::min(since_us, input.since_us);
  }
  return since_us;
}

void InputBuffers::End(const absl::Status& why) {
  for (const Input& input : inputs_) {
    if (input.check != nullptr) input.check->Settle(why);
  }
}

}  // namespace baton::prefill
