#include "services/prefill/stage/activation_channel.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/status_text.h"
#include "services/prefill/stage/unreliable_send.h"

namespace baton::prefill {
namespace {

constexpr uint64_t kCreditReceipt = 0;  // Of messages without a payload.
// Enough to keep the network busy while the next piece is hashed.
constexpr int kPiecesUnderWay = 3;

size_t PiecesOf(const ActivationHeader& header) {
  return (header.total_bytes() + kActivationPieceBytes - 1) / kActivationPieceBytes;
}

absl::Status Blame(const absl::Status& status, const InstanceRef& to) {
  absl::Status named = Annotate(status, absl::StrCat("to ", to.id));
  // Our own queue or our own end: no fault of the neighbour's.
  if (absl::IsResourceExhausted(status)) return named;
  return WithLeg(std::move(named), "prefill", to.id);
}

}  // namespace

struct ActivationChannel::Memory {
  struct Input {
    MemoryBuffer data;
    uint64_t number = 0;  // Plan in it; 0: free.
    uint32_t tokens = 0;
    int64_t since_us = 0;    // When its first piece began to arrive.
    std::vector<bool> came;  // By piece: it is arriving or has arrived.
    size_t placed = 0;       // Pieces.
    std::shared_ptr<InputChecks> checks;
  };
  ActivationEpoch epoch;
  std::vector<Input> inputs;
  std::vector<MemoryBuffer> outputs;
};

// A plan's activations on their way to the next stage; data thread.
struct ActivationChannel::Passing {
  SendActivations action;
  std::shared_ptr<Memory> memory;  // Keeps the output buffer alive.
  std::span<const std::byte> payload;
  size_t next_offset = 0;
  int under_way = 0;
  bool advancing = false;
  absl::Status status;
};

ActivationChannel::ActivationChannel(Options options)
    : options_(std::move(options)),
      columns_(options_.executor->activation_columns()),
      type_(options_.executor->activation_type()) {
  checking_.Start();
}

ActivationChannel::~ActivationChannel() { checking_.Stop(); }

absl::Status ActivationChannel::Begin(const ActivationEpoch& epoch) {
  BATON_CHECK(epoch.credits > 0 && epoch.output_buffers > 0 && epoch.max_plan_tokens > 0)
      << epoch.credits << " credits, " << epoch.output_buffers << " output buffers, "
      << epoch.max_plan_tokens << " tokens";
  const size_t bytes = View({}, epoch.max_plan_tokens).bytes();
  auto memory = std::make_shared<Memory>();
  memory->epoch = epoch;
  if (epoch.previous.has_value()) memory->inputs.resize(static_cast<size_t>(epoch.credits));
  for (Memory::Input& input : memory->inputs) {
    BATON_ASSIGN_OR_RETURN(input.data, options_.executor->AllocateActivations(bytes));
  }
  if (epoch.next.has_value()) memory->outputs.resize(static_cast<size_t>(epoch.output_buffers));
  for (MemoryBuffer& output : memory->outputs) {
    BATON_ASSIGN_OR_RETURN(output, options_.executor->AllocateActivations(bytes));
  }
  MutexLock lock(&mutex_);
  memory_ = std::move(memory);
  return absl::OkStatus();
}

// The first `tokens` rows of a buffer.
TensorView ActivationChannel::View(const MemorySpan& buffer, int64_t tokens) const {
  TensorView view{buffer, type_, tokens, columns_};
  if (!buffer.empty()) view.memory = buffer.Sub(0, view.bytes());
  return view;
}

void ActivationChannel::End() {
  MutexLock lock(&mutex_);
  memory_.reset();
}

absl::StatusOr<ActivationBuffers> ActivationChannel::Buffers(uint64_t number, int tokens) {
  MutexLock lock(&mutex_);
  BATON_CHECK(memory_ != nullptr) << "buffers of plan " << number << " between epochs";
  ActivationBuffers buffers{memory_, {}, {}, nullptr};
  if (!memory_->inputs.empty()) {
    const Memory::Input& input = memory_->inputs[number % memory_->inputs.size()];
    if (input.number != number || input.tokens != static_cast<uint32_t>(tokens)) {
      return absl::InternalError(absl::StrCat("plan ", number, " has ", tokens,
                                              " tokens, its activations are ", input.tokens,
                                              " tokens of plan ", input.number));
    }
    buffers.in = View(input.data.span(), tokens);
    buffers.checks = input.checks;
  }
  if (!memory_->outputs.empty()) {
    buffers.out = View(memory_->outputs[number % memory_->outputs.size()].span(), tokens);
  }
  return buffers;
}

void ActivationChannel::Send(const SendActivations& action) {
  std::shared_ptr<Memory> memory;
  {
    MutexLock lock(&mutex_);
    memory = memory_;
  }
  BATON_CHECK(memory != nullptr && memory->epoch.epoch == action.epoch && memory->epoch.next)
      << "activations of epoch " << action.epoch;
  const std::span<const std::byte> payload =
      View(memory->outputs[action.number % memory->outputs.size()].span(), action.token_count)
          .memory.Host();
  if (absl::Status status = Failpoint("prefill.activations_send"); !status.ok()) {
    options_.on_event(ActivationsSent{action.epoch, action.number, std::move(status)});
    return;
  }
  auto passing = std::make_shared<Passing>();
  passing->action = action;
  passing->memory = std::move(memory);
  passing->payload = payload;
  // The output buffers bound how often this happens.
  if (options_.data_plane->PostReserved([this, passing] { Advance(passing); })) return;
  options_.on_event(
      ActivationsSent{action.epoch, action.number, absl::CancelledError("the stage has ended")});
}

void ActivationChannel::Advance(const std::shared_ptr<Passing>& passing) {
  if (std::exchange(passing->advancing, true)) return;  // A send ended at once, within SendPiece.
  {
    MutexLock lock(&mutex_);
    if (memory_ != passing->memory && passing->status.ok()) {
      passing->status = absl::CancelledError("the epoch is over");
    }
  }
  while (passing->status.ok() && passing->next_offset < passing->payload.size() &&
         passing->under_way < kPiecesUnderWay) {
    SendPiece(passing);
  }
  passing->advancing = false;
  const bool over = !passing->status.ok() || passing->next_offset == passing->payload.size();
  if (!over || passing->under_way > 0) return;
  options_.on_event(
      ActivationsSent{passing->action.epoch, passing->action.number, passing->status});
}

void ActivationChannel::SendPiece(const std::shared_ptr<Passing>& passing) {
  const size_t offset = passing->next_offset;
  const auto piece = passing->payload.subspan(
      offset, std::min<size_t>(kActivationPieceBytes, passing->payload.size() - offset));
  passing->next_offset += piece.size();
  ++passing->under_way;
  Outgoing message;
  message.kind = MessageKind::kActivations;
  message.header = EncodeActivationMessage(ActivationHeader{
      passing->action.epoch, passing->action.number,
      static_cast<uint32_t>(passing->action.token_count), static_cast<uint32_t>(columns_), offset,
      piece.size(), PayloadChecksum(piece), type_});
  message.runs.push_back(piece);
  message.on_sent = [this, passing, bytes = piece.size()](const absl::Status& status) {
    --passing->under_way;
    if (status.ok()) {
      options_.metrics->Increment(Metric::kActivationBytesTotal, static_cast<double>(bytes));
    } else if (passing->status.ok()) {
      passing->status = Blame(status, passing->memory->epoch.next->instance);
    }
    Advance(passing);
  };
  SendUnlessLost(*options_.data_plane, passing->memory->epoch.next->endpoint, std::move(message),
                 "prefill.activations_lost");
}

void ActivationChannel::Return(const ReturnCredit& action) {
  std::optional<Neighbour> previous;
  {
    MutexLock lock(&mutex_);
    BATON_CHECK(memory_ != nullptr && memory_->epoch.epoch == action.epoch)
        << "credit of epoch " << action.epoch;
    Memory::Input& input = memory_->inputs[action.number % memory_->inputs.size()];
    BATON_CHECK(input.number == action.number) << "plan " << action.number;
    input.number = 0;
    previous = memory_->epoch.previous;
  }
  Outgoing message;
  message.kind = MessageKind::kActivations;
  message.header = EncodeActivationMessage(ActivationCredit{action.epoch, action.number});
  message.on_sent = [this, action, to = previous->instance](const absl::Status& status) {
    if (status.ok()) return;
    const absl::Status blamed = Blame(status, to);
    options_.on_error(action.epoch,
                      Annotate(blamed, absl::StrCat("sending the credit of plan ", action.number)));
  };
  SendUnlessLost(*options_.data_plane, previous->endpoint, std::move(message),
                 "prefill.credit_lost");
}

int64_t ActivationChannel::receiving_since_us() const {
  MutexLock lock(&mutex_);
  int64_t since_us = kNeverUs;
  if (memory_ == nullptr) return since_us;
  for (const Memory::Input& input : memory_->inputs) {
    if (input.number == 0 || input.placed == input.came.size()) continue;
    since_us = std::min(since_us, input.since_us);
  }
  return since_us;
}

absl::StatusOr<std::span<std::byte>> ActivationChannel::Accept(const ActivationHeader& header,
                                                               size_t payload_bytes) {
  const auto refused = [&header](const std::string& what) {
    return absl::FailedPreconditionError(
        absl::StrCat("activations of plan ", header.number, ": ", what));
  };
  if (memory_->inputs.empty()) return refused("this stage takes none");
  if (header.bytes != payload_bytes) {
    return refused(absl::StrCat(payload_bytes, " bytes came, announced were ", header.bytes));
  }
  if (header.hidden_size != static_cast<uint32_t>(columns_) || header.type != type_ ||
      header.tokens > static_cast<uint32_t>(memory_->epoch.max_plan_tokens)) {
    return refused(absl::StrCat("shape [", header.tokens, ", ", header.hidden_size, "] ",
                                ElementTypeName(header.type), ", expected at most [",
                                memory_->epoch.max_plan_tokens, ", ", columns_, "] ",
                                ElementTypeName(type_)));
  }
  Memory::Input& input = memory_->inputs[header.number % memory_->inputs.size()];
  if (input.number == 0) {
    input.number = header.number;
    input.since_us = NowUs();
    input.tokens = header.tokens;
    input.came.assign(PiecesOf(header), false);
    input.placed = 0;
    input.checks = std::make_shared<InputChecks>(input.came.size());
  }
  if (input.number != header.number) {
    return refused(absl::StrCat("plan ", input.number, " has the buffer"));
  }
  const size_t piece = header.offset / kActivationPieceBytes;
  if (input.tokens != header.tokens || input.came[piece]) {
    return refused(absl::StrCat("piece ", piece, " of [", header.tokens, ", ", header.hidden_size,
                                "] came twice or is of another shape"));
  }
  input.came[piece] = true;
  return input.data.span().Sub(header.offset, payload_bytes).Host();
}

std::optional<Placement> ActivationChannel::OnHeader(std::span<const std::byte> header,
                                                     size_t payload_bytes) {
  const absl::StatusOr<ActivationMessage> message = DecodeActivationMessage(header);
  if (!message.ok()) {
    LOG(kWarning) << DescribeStatus(message.status());
    return std::nullopt;
  }
  if (const auto* credit = std::get_if<ActivationCredit>(&*message)) {
    if (payload_bytes != 0) return std::nullopt;
    options_.on_event(CreditReturned{credit->epoch, credit->number});
    return Placement{{}, kCreditReceipt};
  }
  const auto& activations = std::get<ActivationHeader>(*message);
  absl::Status refusal;
  {
    MutexLock lock(&mutex_);
    if (memory_ == nullptr || memory_->epoch.epoch != activations.epoch) return std::nullopt;
    const absl::StatusOr<std::span<std::byte>> target = Accept(activations, payload_bytes);
    if (target.ok()) {
      const uint64_t receipt = next_receipt_++;
      arriving_[receipt] = {memory_, activations,
                            memory_->inputs[activations.number % memory_->inputs.size()].checks};
      return Placement{{*target}, receipt};
    }
    refusal = target.status();
  }
  options_.on_error(activations.epoch, refusal);
  return std::nullopt;
}

void ActivationChannel::OnPlaced(uint64_t receipt, const absl::Status& status) {
  if (receipt == kCreditReceipt) return;
  Arriving arrived;
  {
    MutexLock lock(&mutex_);
    const auto found = arriving_.find(receipt);
    BATON_CHECK(found != arriving_.end()) << "receipt " << receipt;
    arrived = std::move(found->second);
    arriving_.erase(found);
  }
  const ActivationHeader& header = arrived.header;
  if (!status.ok()) {
    options_.on_error(header.epoch, status);
    return;
  }
  Check(arrived);
  Memory::Input& input = arrived.memory->inputs[header.number % arrived.memory->inputs.size()];
  int64_t since_us = 0;
  {
    MutexLock lock(&mutex_);
    if (++input.placed < PiecesOf(header)) return;
    since_us = input.since_us;
  }
  options_.on_event(ActivationsArrived{header.epoch, header.number, since_us});
}

void ActivationChannel::Check(const Arriving& arrived) {
  // The input buffers bound how often this happens.
  const bool taken = checking_.PostCompletion([this, arrived] {
    const ActivationHeader& header = arrived.header;
    const MemoryBuffer& input =
        arrived.memory->inputs[header.number % arrived.memory->inputs.size()].data;
    absl::Status status;
    if (PayloadChecksum(input.span().Sub(header.offset, header.bytes).Host()) != header.checksum) {
      status =
          absl::DataLossError(absl::StrCat("activations of plan ", header.number, " are damaged"));
    }
    arrived.checks->Checked(status);
    if (!status.ok()) options_.on_error(header.epoch, status);
  });
  if (!taken) arrived.checks->Checked(absl::CancelledError("the stage has ended"));
}

}  // namespace baton::prefill
