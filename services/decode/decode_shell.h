// The callers of a decode service: those that wait for tickets and those that read texts. Its chain
// (services/prefill/chain) does the rest. Everything runs on the loop.
#ifndef SERVICES_DECODE_DECODE_SHELL_H_
#define SERVICES_DECODE_DECODE_SHELL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "proto/baton/v1/decode.pb.h"
#include "services/decode/core/ticket_book.h"
#include "services/prefill/chain/chain_shell.h"
#include "services/prefill/core/member_grants.h"
#include "services/worker/token_stream.h"
#include "services/worker/unary_answer.h"
namespace baton::decode {

using ReserveCall = worker::UnaryAnswer<v1::ReserveResponse>;

class DecodeShell {
 public:
  struct Options {
    std::string instance_id;
    prefill::ChainShell* chain = nullptr;  // Not owned, as `kv`.
    prefill::KvInlet* kv = nullptr;
    int64_t stream_lease_us = 0;
    // Runs a task on the loop; false: it has stopped. Any thread.
    std::function<bool(std::function<void()>)> post;
  };
  explicit DecodeShell(Options options);

  // A checked reservation. `call` is answered exactly once.
  void Reserve(prefill::Start start, std::shared_ptr<ReserveCall> call);
  void Open(uint64_t attempt_id, uint64_t generation,
            const std::shared_ptr<worker::TokenStream>& stream);
  void Abort(uint64_t attempt_id, const absl::Status& reason);
  // Only if the attempt still holds the ticket of that generation.
  void Release(uint64_t attempt_id, uint64_t generation);
  int FlushCache() { return options_.chain->FlushCache(); }
  // The client of this call or stream is gone; another call of the attempt is not affected.
  void Cancelled(uint64_t attempt_id, const ReserveCall* call);
  void Cancelled(uint64_t attempt_id, const worker::TokenStream* stream);

  // Does what is due; returns when it is next.
  int64_t Wake(int64_t now_us);
  bool AtRest() const { return book_.empty(); }

 private:
  class Request;
  // From Reserve to the request's end.
  struct Session {
    std::shared_ptr<ReserveCall> reserve;  // Until the stream opens.
    std::shared_ptr<worker::TokenStream> stream;
    bool logprobs = false;
  };

  void OnTicket(uint64_t attempt_id, const Ticket& ticket);
  absl::Status OnToken(uint64_t attempt_id, const SampledToken& token, bool logprobs);
  void OnEnd(uint64_t attempt_id, const TicketBook::Outcome& outcome);
  absl::Status Own(absl::Status status) const;

  const Options options_;
  TicketBook book_;
  std::map<uint64_t, Session> sessions_;  // By attempt; those that the book holds.
};

}  // namespace baton::decode

#endif  // SERVICES_DECODE_DECODE_SHELL_H_
