#include "services/prefill/stage/activation_channel.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/checksum.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "services/prefill/stage/unreliable_send.h"

namespace baton::prefill {
namespace {

constexpr uint64_t kNoReceipt = 0;  // For messages without a payload.
// More than a chunk of the widest models has. The receiver works through them by itself, where with
// a few it would wait for a sender that finds all cores busy.
constexpr int kPiecesUnderWay = 16;

absl::Status Blame(const absl::Status& status, const InstanceRef& to) {
  absl::Status named = Annotate(status, absl::StrCat("to ", to.id));
  // Our own queue or our own end: no fault of the neighbour's.
  if (absl::IsResourceExhausted(status)) return named;
  return WithLeg(std::move(named), "prefill", to.id);
}

}  // namespace

struct ActivationChannel::Memory {
  ActivationEpoch epoch;
  InputBuffers inputs;
  std::vector<MemoryBuffer> outputs;
};

// A plan's activations on their way to the next stage; the data thread's, and when all pieces have
// gone the checks'.
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
  BATON_ASSIGN_OR_RETURN(
      auto inputs, Allocate(epoch.previous.has_value() ? epoch.credits : 0, epoch.max_plan_tokens));
  BATON_ASSIGN_OR_RETURN(auto outputs, Allocate(epoch.next.has_value() ? epoch.output_buffers : 0,
                                                epoch.max_plan_tokens));
  InputBuffers buffers({epoch.max_plan_tokens, columns_, type_}, std::move(inputs));
  auto memory = std::make_shared<Memory>(Memory{epoch, std::move(buffers), std::move(outputs)});
  MutexLock lock(&mutex_);
  memory_ = std::move(memory);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<MemoryBuffer>> ActivationChannel::Allocate(int count,
                                                                      int64_t tokens) const {
  std::vector<MemoryBuffer> buffers(static_cast<size_t>(count));
  for (MemoryBuffer& buffer : buffers) {
    BATON_ASSIGN_OR_RETURN(buffer,
                           options_.executor->AllocateActivations(View({}, tokens).bytes()));
  }
  return buffers;
}

// The first `tokens` rows of a buffer.
TensorView ActivationChannel::View(const MemorySpan& buffer, int64_t tokens) const {
  TensorView view{buffer, type_, tokens, columns_};
  if (!buffer.empty()) view.memory = buffer.Sub(0, view.bytes());
  return view;
}

void ActivationChannel::End() {
  MutexLock lock(&mutex_);
  if (memory_ == nullptr) return;
  memory_->inputs.End(absl::CancelledError("the epoch is over"));
  memory_.reset();
}

absl::StatusOr<ActivationBuffers> ActivationChannel::Buffers(uint64_t number, int tokens) {
  MutexLock lock(&mutex_);
  BATON_CHECK(memory_ != nullptr) << "buffers of plan " << number << " between epochs";
  ActivationBuffers buffers{memory_, {}, {}, nullptr};
  if (!memory_->inputs.empty()) {
    BATON_ASSIGN_OR_RETURN(InputBuffers::Whole input, memory_->inputs.Of(number, tokens));
    buffers.in = View(input.data, tokens);
    buffers.check = std::move(input.check);
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
  if (!passing->status.ok()) return Sent(*passing);
  // The output buffers bound how often this happens.
  if (checking_.PostCompletion([this, passing] { SendSum(passing); })) return;
  passing->status = absl::CancelledError("the stage has ended");
  Sent(*passing);
}

void ActivationChannel::Sent(const Passing& passing) {
  options_.on_event(ActivationsSent{passing.action.epoch, passing.action.number, passing.status});
}

void ActivationChannel::SendSum(const std::shared_ptr<Passing>& passing) {
  Outgoing message;
  message.kind = MessageKind::kActivations;
  message.header = EncodeActivationMessage(ActivationSum{
      passing->action.epoch, passing->action.number, YieldingChecksum(passing->payload)});
  message.on_sent = [this, passing](const absl::Status& status) {
    if (!status.ok()) passing->status = Blame(status, passing->memory->epoch.next->instance);
    Sent(*passing);
  };
  SendUnlessLost(*options_.data_plane, passing->memory->epoch.next->endpoint, std::move(message),
                 "prefill.activation_sum_lost");
}

void ActivationChannel::SendPiece(const std::shared_ptr<Passing>& passing) {
  const size_t offset = passing->next_offset;
  const auto piece = passing->payload.subspan(
      offset, std::min<size_t>(kActivationPieceBytes, passing->payload.size() - offset));
  passing->next_offset += piece.size();
  ++passing->under_way;
  Outgoing message;
  message.kind = MessageKind::kActivations;
  ActivationHeader header;
  header.epoch = passing->action.epoch;
  header.number = passing->action.number;
  header.tokens = static_cast<uint32_t>(passing->action.token_count);
  header.hidden_size = static_cast<uint32_t>(columns_);
  header.offset = offset;
  header.bytes = piece.size();
  header.type = type_;
  message.header = EncodeActivationMessage(header);
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
    memory_->inputs.Free(action.number);
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
  return memory_ == nullptr ? kNeverUs : memory_->inputs.receiving_since_us();
}

std::optional<Placement> ActivationChannel::OnHeader(std::span<const std::byte> header,
                                                     size_t payload_bytes) {
  const absl::StatusOr<ActivationMessage> message = DecodeActivationMessage(header);
  if (!message.ok()) {
    LOG(kWarning) << DescribeStatus(message.status());
    return std::nullopt;
  }
  if (const auto* activations = std::get_if<ActivationHeader>(&*message)) {
    return OnPiece(*activations, payload_bytes);
  }
  if (payload_bytes != 0) return std::nullopt;
  if (const auto* sum = std::get_if<ActivationSum>(&*message)) {
    OnSum(*sum);
  } else {
    const auto& credit = std::get<ActivationCredit>(*message);
    options_.on_event(CreditReturned{credit.epoch, credit.number});
  }
  return Placement{{}, kNoReceipt};
}

std::optional<Placement> ActivationChannel::OnPiece(const ActivationHeader& header,
                                                    size_t payload_bytes) {
  absl::Status refusal;
  {
    MutexLock lock(&mutex_);
    if (memory_ == nullptr || memory_->epoch.epoch != header.epoch) return std::nullopt;
    const absl::StatusOr<MemorySpan> target =
        memory_->inputs.Accept(header, payload_bytes, NowUs());
    if (target.ok()) {
      const uint64_t receipt = next_receipt_++;
      arriving_[receipt] = {memory_, header};
      return Placement{{target->Host()}, receipt};
    }
    refusal = target.status();
  }
  options_.on_error(header.epoch, refusal);
  return std::nullopt;
}

void ActivationChannel::OnSum(const ActivationSum& sum) {
  absl::StatusOr<std::shared_ptr<InputCheck>> check;
  {
    MutexLock lock(&mutex_);
    if (memory_ == nullptr || memory_->epoch.epoch != sum.epoch) return;
    check = memory_->inputs.Accept(sum, NowUs());
  }
  const absl::Status status = check.ok() ? (*check)->Sent(sum.checksum) : check.status();
  if (!status.ok()) options_.on_error(sum.epoch, status);
}

void ActivationChannel::OnPlaced(uint64_t receipt, const absl::Status& status) {
  if (receipt == kNoReceipt) return;
  Arriving arrived;
  {
    MutexLock lock(&mutex_);
    const auto found = arriving_.find(receipt);
    BATON_CHECK(found != arriving_.end()) << "receipt " << receipt;
    arrived = std::move(found->second);
    arriving_.erase(found);
  }
  const ActivationHeader& header = arrived.header;
  if (!status.ok()) return options_.on_error(header.epoch, status);
  std::optional<InputBuffers::Whole> whole;
  {
    MutexLock lock(&mutex_);
    whole = arrived.memory->inputs.Placed(header);
  }
  if (!whole.has_value()) return;
  options_.on_event(ActivationsArrived{header.epoch, header.number, whole->since_us});
  Check(arrived, *std::move(whole));
}

void ActivationChannel::Check(const Arriving& arrived, InputBuffers::Whole whole) {
  const auto check = whole.check;
  // The input buffers bound how often this happens.
  const bool taken = checking_.PostCompletion([this, arrived, whole = std::move(whole)] {
    const absl::Status checked = whole.check->Arrived(YieldingChecksum(whole.data.Host()));
    if (!checked.ok()) options_.on_error(arrived.header.epoch, checked);
  });
  if (!taken) check->Settle(absl::CancelledError("the stage has ended"));
}

}  // namespace baton::prefill
