#include "services/prefill/stage/activation_link.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"

namespace baton::prefill {
namespace {

constexpr size_t kOutputBuffers = 2;    // As in the core.
constexpr uint64_t kCreditReceipt = 0;  // Of messages without a payload.

}  // namespace

struct ActivationLink::Memory {
  struct Input {
    std::unique_ptr<float[]> data;
    uint64_t number = 0;  // Plan in it; 0: free.
    uint32_t tokens = 0;
  };
  ActivationEpoch epoch;
  std::vector<Input> inputs;
  std::vector<std::unique_ptr<float[]>> outputs;
};

ActivationLink::ActivationLink(Options options) : options_(std::move(options)) {}

ActivationLink::~ActivationLink() = default;

void ActivationLink::Begin(const ActivationEpoch& epoch) {
  BATON_CHECK(epoch.credits > 0 && epoch.max_plan_tokens > 0)
      << epoch.credits << " credits, " << epoch.max_plan_tokens << " tokens";
  const size_t elements =
      static_cast<size_t>(epoch.max_plan_tokens) * static_cast<size_t>(options_.hidden_size);
  auto memory = std::make_shared<Memory>();
  memory->epoch = epoch;
  // Left uninitialised: the pages are first touched by the data itself.
  if (epoch.previous.has_value()) {
    memory->inputs.resize(static_cast<size_t>(epoch.credits));
    for (Memory::Input& input : memory->inputs) input.data.reset(new float[elements]);
  }
  if (epoch.next.has_value()) {
    memory->outputs.resize(kOutputBuffers);
    for (auto& output : memory->outputs) output.reset(new float[elements]);
  }
  MutexLock lock(&mutex_);
  memory_ = std::move(memory);
}

void ActivationLink::End() {
  MutexLock lock(&mutex_);
  memory_.reset();
}

absl::StatusOr<ActivationBuffers> ActivationLink::Buffers(uint64_t number, int tokens) {
  MutexLock lock(&mutex_);
  BATON_CHECK(memory_ != nullptr) << "buffers of plan " << number << " between epochs";
  const size_t elements = static_cast<size_t>(tokens) * static_cast<size_t>(options_.hidden_size);
  ActivationBuffers buffers{memory_, {}, {}};
  if (!memory_->inputs.empty()) {
    const Memory::Input& input = memory_->inputs[number % memory_->inputs.size()];
    if (input.number != number || input.tokens != static_cast<uint32_t>(tokens)) {
      return absl::InternalError(absl::StrCat("plan ", number, " has ", tokens,
                                              " tokens, its activations are ", input.tokens,
                                              " tokens of plan ", input.number));
    }
    buffers.in = {input.data.get(), elements};
  }
  if (!memory_->outputs.empty()) {
    buffers.out = {memory_->outputs[number % kOutputBuffers].get(), elements};
  }
  return buffers;
}

void ActivationLink::Send(const SendActivations& action) {
  std::shared_ptr<Memory> memory;
  {
    MutexLock lock(&mutex_);
    memory = memory_;
  }
  BATON_CHECK(memory != nullptr && memory->epoch.epoch == action.epoch && memory->epoch.next)
      << "activations of epoch " << action.epoch;
  const size_t elements =
      static_cast<size_t>(action.token_count) * static_cast<size_t>(options_.hidden_size);
  const auto payload = std::as_bytes(
      std::span<const float>(memory->outputs[action.number % kOutputBuffers].get(), elements));
  if (absl::Status status = Failpoint("prefill.activations_send"); !status.ok()) {
    options_.on_event(ActivationsSent{action.epoch, action.number, std::move(status)});
    return;
  }
  ActivationHeader header{action.epoch,
                          action.number,
                          static_cast<uint32_t>(action.token_count),
                          static_cast<uint32_t>(options_.hidden_size),
                          payload.size(),
                          PayloadChecksum(payload)};
  Outgoing message;
  message.kind = MessageKind::kActivations;
  message.header = EncodeActivationMessage(header);
  message.runs.push_back(payload);
  message.on_sent = [this, action, memory, bytes = payload.size()](const absl::Status& status) {
    if (status.ok()) {
      options_.metrics->Increment(Metric::kActivationBytesTotal, static_cast<double>(bytes));
    }
    options_.on_event(ActivationsSent{action.epoch, action.number, status});
  };
  options_.data_plane->Send(*memory->epoch.next, std::move(message));
}

void ActivationLink::Return(const ReturnCredit& action) {
  PeerId previous = 0;
  {
    MutexLock lock(&mutex_);
    BATON_CHECK(memory_ != nullptr && memory_->epoch.epoch == action.epoch)
        << "credit of epoch " << action.epoch;
    Memory::Input& input = memory_->inputs[action.number % memory_->inputs.size()];
    BATON_CHECK(input.number == action.number) << "plan " << action.number;
    input.number = 0;
    previous = *memory_->epoch.previous;
  }
  Outgoing message;
  message.kind = MessageKind::kActivations;
  message.header = EncodeActivationMessage(ActivationCredit{action.epoch, action.number});
  message.on_sent = [this, action](const absl::Status& status) {
    if (!status.ok()) options_.on_error(action.epoch, status);
  };
  options_.data_plane->Send(previous, std::move(message));
}

bool ActivationLink::receiving() const {
  MutexLock lock(&mutex_);
  return !arriving_.empty();
}

absl::StatusOr<std::span<float>> ActivationLink::Accept(const ActivationHeader& header,
                                                        size_t payload_bytes) {
  const auto refused = [&header](const std::string& what) {
    return absl::FailedPreconditionError(
        absl::StrCat("activations of plan ", header.number, ": ", what));
  };
  if (memory_->inputs.empty()) return refused("this stage takes none");
  if (header.bytes != payload_bytes) {
    return refused(absl::StrCat(payload_bytes, " bytes came, announced were ", header.bytes));
  }
  if (header.hidden_size != static_cast<uint32_t>(options_.hidden_size) ||
      header.tokens > static_cast<uint32_t>(memory_->epoch.max_plan_tokens)) {
    return refused(absl::StrCat("shape [", header.tokens, ", ", header.hidden_size,
                                "], expected at most [", memory_->epoch.max_plan_tokens, ", ",
                                options_.hidden_size, "]"));
  }
  Memory::Input& input = memory_->inputs[header.number % memory_->inputs.size()];
  if (input.number != 0) return refused(absl::StrCat("plan ", input.number, " has the buffer"));
  input.number = header.number;
  input.tokens = header.tokens;
  return std::span<float>(input.data.get(), payload_bytes / sizeof(float));
}

std::optional<Placement> ActivationLink::OnHeader(std::span<const std::byte> header,
                                                  size_t payload_bytes) {
  const absl::StatusOr<ActivationMessage> message = DecodeActivationMessage(header);
  if (!message.ok()) {
    LOG(kWarning) << message.status();
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
    const absl::StatusOr<std::span<float>> target = Accept(activations, payload_bytes);
    if (target.ok()) {
      const uint64_t receipt = next_receipt_++;
      arriving_[receipt] = {memory_, activations};
      return Placement{{std::as_writable_bytes(*target)}, receipt};
    }
    refusal = target.status();
  }
  options_.on_error(activations.epoch, refusal);
  return std::nullopt;
}

void ActivationLink::OnPlaced(uint64_t receipt, const absl::Status& status) {
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
  const Memory::Input& input =
      arrived.memory->inputs[header.number % arrived.memory->inputs.size()];
  const auto payload = std::as_bytes(std::span<const float>(input.data.get(), header.bytes / 4));
  if (PayloadChecksum(payload) != header.checksum) {
    options_.on_error(header.epoch, absl::DataLossError(absl::StrCat(
                                        "activations of plan ", header.number, " are damaged")));
    return;
  }
  options_.on_event(ActivationsArrived{header.epoch, header.number});
}

}  // namespace baton::prefill
