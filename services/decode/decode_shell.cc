#include "services/decode/decode_shell.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"

namespace baton::decode {
namespace {

// Outcomes that wait for their streams.
constexpr size_t kKeptOutcomes = 1024;

}  // namespace

// The chain's word for one attempt.
class DecodeShell::Request final : public prefill::Reservation {
 public:
  Request(DecodeShell* owner, uint64_t attempt_id) : owner_(owner), attempt_id_(attempt_id) {}
  void OnTicket(const Ticket& ticket) override { owner_->OnTicket(attempt_id_, ticket); }
  absl::Status OnToken(const SampledToken& token, bool logprobs) override {
    return owner_->OnToken(attempt_id_, token, logprobs);
  }
  void OnEnd(const absl::StatusOr<FinishReason>& outcome) override {
    owner_->OnEnd(attempt_id_, outcome);
  }

 private:
  DecodeShell* const owner_;
  const uint64_t attempt_id_;
};

DecodeShell::DecodeShell(Options options)
    : options_(std::move(options)), book_(options_.stream_lease_us, kKeptOutcomes) {}

absl::Status DecodeShell::Own(absl::Status status) const {
  if (LegOf(status).has_value()) return status;
  return WithLeg(std::move(status), "decode", options_.instance_id);
}

void DecodeShell::Reserve(prefill::Start start, std::shared_ptr<ReserveCall> call) {
  const uint64_t attempt_id = start.attempt_id;
  absl::Status status = Failpoint("decode.reserve");
  // The chain would refuse it too, but its answer could not be told from one to the earlier call.
  if (book_.Holds(attempt_id)) {
    status = absl::AlreadyExistsError(absl::StrCat("attempt ", attempt_id, " is held already"));
  }
  if (!status.ok()) return call->Reply(Own(status));
  book_.Ask(attempt_id);
  sessions_[attempt_id].reserve = std::move(call);
  options_.chain->Reserve(std::move(start), std::make_shared<Request>(this, attempt_id));
}

void DecodeShell::Open(uint64_t attempt_id, uint64_t generation,
                       const std::shared_ptr<worker::TokenStream>& stream) {
  absl::StatusOr<TicketBook::Owed> owed = book_.Open(attempt_id, generation);
  if (!owed.ok()) {
    absl::Status status = owed.status();
    // Its ticket was on its way to the router when the drain's time ended it.
    if (absl::IsNotFound(status) && options_.chain->draining()) {
      status = EndedByDrain(
          absl::UnavailableError(absl::StrCat(status.message(), ": a drain ended it")));
    }
    return stream->Conclude(Own(std::move(status)));
  }
  Session& session = sessions_.at(attempt_id);
  session.stream = stream;
  session.reserve = nullptr;
  for (const SampledToken& token : owed->tokens) {
    const absl::Status status = OnToken(attempt_id, token, session.logprobs);
    if (!status.ok() && !owed->outcome.has_value()) return Abort(attempt_id, status);
  }
  if (!owed->outcome.has_value()) return;
  sessions_.erase(attempt_id);
  stream->Conclude(*owed->outcome);
}

void DecodeShell::Abort(uint64_t attempt_id, const absl::Status& reason) {
  options_.chain->Abort(attempt_id, reason);
  book_.ForgetIfOver(attempt_id);
  if (!book_.Holds(attempt_id)) sessions_.erase(attempt_id);
}

void DecodeShell::Release(uint64_t attempt_id, uint64_t generation) {
  if (generation == 0 || book_.GenerationOf(attempt_id) != generation) return;
  Abort(attempt_id, absl::CancelledError("released"));
}

void DecodeShell::Cancelled(uint64_t attempt_id, const ReserveCall* call) {
  const auto found = sessions_.find(attempt_id);
  if (found == sessions_.end() || found->second.reserve.get() != call) return;
  Abort(attempt_id, absl::CancelledError("the reservation was cancelled"));
}

void DecodeShell::Cancelled(uint64_t attempt_id, const worker::TokenStream* stream) {
  const auto found = sessions_.find(attempt_id);
  if (found == sessions_.end() || found->second.stream.get() != stream) return;
  Abort(attempt_id, absl::CancelledError("the stream was cancelled"));
}

int64_t DecodeShell::Wake(int64_t now_us) {
  for (const uint64_t attempt_id : book_.Expire(now_us)) Abort(attempt_id, Own(book_.TooLate()));
  // Those that were over are forgotten.
  std::erase_if(sessions_, [this](const auto& entry) { return !book_.Holds(entry.first); });
  return book_.NextDeadlineUs();
}

// ---- What the chain says ----

void DecodeShell::OnTicket(uint64_t attempt_id, const Ticket& ticket) {
  book_.GiveTicket(attempt_id, ticket.generation, NowUs());
  // Goes through the data thread, where the grant must be in force before a writer can use the
  // ticket, and back: gRPC's work for an answer must not delay the data thread.
  options_.kv->After([post = options_.post, call = sessions_.at(attempt_id).reserve, ticket] {
    v1::ReserveResponse response;
    *response.mutable_ticket() = rpc::ToProto(ticket);
    if (post([call, response] { call->Reply(absl::OkStatus(), response); })) return;
    call->Reply(absl::UnavailableError("the decode service has stopped"));
  });
}

absl::Status DecodeShell::OnToken(uint64_t attempt_id, const SampledToken& token, bool logprobs) {
  Session& session = sessions_.at(attempt_id);
  session.logprobs = logprobs;
  if (session.stream == nullptr && !book_.Deliver(attempt_id, token)) return absl::OkStatus();
  if (absl::Status status = Failpoint("decode.emit"); !status.ok()) return Own(status);
  if (session.stream->PushToken(token, logprobs)) return absl::OkStatus();
  session.stream->Break();
  return absl::ResourceExhaustedError("the reader of the stream is too slow");
}

void DecodeShell::OnEnd(uint64_t attempt_id, const TicketBook::Outcome& outcome) {
  const auto found = sessions_.find(attempt_id);
  switch (book_.End(attempt_id, outcome)) {
    case TicketBook::EndFor::kLater:
      if (!book_.Holds(attempt_id)) sessions_.erase(found);
      return;
    case TicketBook::EndFor::kReservation: {
      const std::shared_ptr<ReserveCall> call = found->second.reserve;
      sessions_.erase(found);
      return call->Reply(outcome.status());
    }
    case TicketBook::EndFor::kStream: {
      const std::shared_ptr<worker::TokenStream> stream = found->second.stream;
      sessions_.erase(found);
      return stream->Conclude(outcome);
    }
  }
}

}  // namespace baton::decode
