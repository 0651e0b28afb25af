#include "services/router/testing/fake_workers.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/rpc/convert.h"
#include "services/router/worker_convert.h"
#include "services/worker/token_relay.h"

namespace baton::router {
namespace {

// Writes a fake decode's tokens one after the other, or a fake colocated chain's: `prompt` first.
class TokenWriter : public grpc::ServerWriteReactor<v1::DecodeGenerateResponse> {
 public:
  TokenWriter(const FakeBehaviour& behaviour, FakeRecord& record,
              std::optional<v1::StartResponse> prompt = std::nullopt)
      : behaviour_(behaviour), record_(record), prompt_(std::move(prompt)) {
    MutexLock lock(&mutex_);
    Next();
  }

 private:
  void Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (prompt_.has_value() && !behaviour_.start.ok()) return Finish(behaviour_.start);
    if (prompt_.has_value() && !behaviour_.start_hangs) {
      *message_.mutable_prompt() = *std::exchange(prompt_, std::nullopt);
      return StartWrite(&message_);
    }
    if (prompt_.has_value()) return Hang();
    if (written_ < behaviour_.tokens.size()) {
      message_.mutable_token()->set_token_id(behaviour_.tokens[written_++]);
      return StartWrite(&message_);
    }
    if (behaviour_.hang_after_tokens) return Hang();
    if (behaviour_.end.ok() && !finished_written_) {
      finished_written_ = true;
      message_.mutable_finished()->set_reason(behaviour_.reason);
      return StartWrite(&message_);
    }
    Finish(behaviour_.end);
  }
  void Hang() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    hanging_ = true;
    if (cancelled_) Finish(grpc::Status::CANCELLED);
  }
  void OnWriteDone(bool ok) override {
    MutexLock lock(&mutex_);
    if (ok) return Next();
    Finish(grpc::Status::CANCELLED);
  }
  void OnCancel() override {
    record_.Note([](FakeRecord::Seen& seen) { ++seen.streams_cancelled; });
    MutexLock lock(&mutex_);
    cancelled_ = true;
    if (hanging_) Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override { delete this; }

  const FakeBehaviour& behaviour_;
  FakeRecord& record_;
  Mutex mutex_;
  std::optional<v1::StartResponse> prompt_ ABSL_GUARDED_BY(mutex_);  // Not yet written.
  v1::DecodeGenerateResponse message_;
  size_t written_ ABSL_GUARDED_BY(mutex_) = 0;
  bool finished_written_ ABSL_GUARDED_BY(mutex_) = false;
  bool hanging_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

// Says by a relay what TokenWriter says by its stream.
void PushAll(const FakeBehaviour& behaviour, uint64_t attempt_id,
             std::optional<v1::StartResponse> prompt, worker::TokenRelay& relay) {
  const auto push = [&](uint64_t attempt, const v1::DecodeGenerateResponse& event) {
    BATON_CHECK(relay.Push(attempt, event)) << "the relay is full";
  };
  v1::DecodeGenerateResponse event;
  if (prompt.has_value()) {
    *event.mutable_prompt() = *std::move(prompt);
    push(attempt_id, event);
  }
  if (behaviour.relay == FakeBehaviour::Relay::kMalformed) {
    event.mutable_finished();
    push(attempt_id + 1, event);
    push(attempt_id, {});
  }
  for (const int32_t token : behaviour.tokens) {
    event.mutable_token()->set_token_id(token);
    push(attempt_id, event);
  }
  if (behaviour.relay == FakeBehaviour::Relay::kWhole) {
    event.mutable_finished()->set_reason(behaviour.reason);
    push(attempt_id, event);
  }
}

// The call Relay of a fake worker, and its streams, whose requests may name one.
class FakeRelay {
 public:
  FakeRelay(const FakeBehaviour& behaviour, FakeRecord& record)
      : behaviour_(behaviour), record_(record) {}

  grpc::ServerWriteReactor<v1::RelayResponse>* Open(const v1::RelayRequest& request) {
    record_.Note([](FakeRecord::Seen& seen) { ++seen.relays; });
    return relays_.Open(request);
  }
  grpc::ServerWriteReactor<v1::DecodeGenerateResponse>* Answer(
      uint64_t relay_id, uint64_t attempt_id,
      const std::optional<v1::StartResponse>& prompt = std::nullopt) {
    const std::shared_ptr<worker::TokenRelay> relay = relays_.Find(relay_id);
    record_.Note([&](FakeRecord::Seen& seen) {
      ++seen.streams;
      if (relay_id != 0) ++seen.relayed_streams;
    });
    if (relay == nullptr || behaviour_.relay == FakeBehaviour::Relay::kUnknown) {
      return new TokenWriter(behaviour_, record_, prompt);
    }
    PushAll(behaviour_, attempt_id, prompt, *relay);
    if (behaviour_.relay == FakeBehaviour::Relay::kBreaks) {
      relays_.Close();
      return new TokenWriter(hangs_, record_);
    }
    return new Ended(*this);
  }

 private:
  // Ends well at once. What was pushed is sent after that.
  class Ended : public grpc::ServerWriteReactor<v1::DecodeGenerateResponse> {
   public:
    explicit Ended(FakeRelay& owner) : owner_(owner) { Finish(grpc::Status::OK); }

   private:
    void OnDone() override {
      owner_.relays_.Flush();
      delete this;
    }
    FakeRelay& owner_;
  };

  const FakeBehaviour& behaviour_;
  const FakeBehaviour hangs_{.hang_after_tokens = true};
  FakeRecord& record_;
  worker::TokenRelays relays_;
};

// Never answers; ends when it is cancelled.
class HangingCall : public grpc::ServerUnaryReactor {
 public:
  explicit HangingCall(FakeRecord& record) : record_(record) {}

 private:
  void OnCancel() override {
    record_.Note([](FakeRecord::Seen& seen) { ++seen.starts_cancelled; });
    Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override { delete this; }

  FakeRecord& record_;
};

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const grpc::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

}  // namespace

class FakeWorker::Decode : public v1::Decode::CallbackService {
 public:
  Decode(InstanceRef self, FakeBehaviour behaviour, FakeRecord& record)
      : self_(std::move(self)), behaviour_(std::move(behaviour)), record_(record) {}

  grpc::ServerUnaryReactor* Reserve(grpc::CallbackServerContext* context,
                                    const v1::ReserveRequest* request,
                                    v1::ReserveResponse* response) override {
    record_.Note([&](FakeRecord::Seen& seen) { seen.reserves.push_back(*request); });
    *response->mutable_ticket() =
        rpc::ToProto(Ticket{self_, 0, ++generation_, request->prompt_tokens(), 1});
    return Answer(context, behaviour_.reserve);
  }
  grpc::ServerWriteReactor<v1::DecodeGenerateResponse>* Generate(
      grpc::CallbackServerContext*, const v1::DecodeGenerateRequest* request) override {
    return relay_.Answer(request->relay_id(), request->attempt_id());
  }
  grpc::ServerWriteReactor<v1::RelayResponse>* Relay(grpc::CallbackServerContext* /*context*/,
                                                     const v1::RelayRequest* request) override {
    if (behaviour_.relay == FakeBehaviour::Relay::kNone) {
      return nullptr;  // UNIMPLEMENTED.
    }
    return relay_.Open(*request);
  }
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const v1::DecodeAbortRequest* request,
                                  v1::DecodeAbortResponse*) override {
    record_.Note(
        [&](FakeRecord::Seen& seen) { seen.decode_aborts.push_back(request->attempt_id()); });
    return Answer(context, grpc::Status::OK);
  }

 private:
  const InstanceRef self_;
  const FakeBehaviour behaviour_;
  FakeRecord& record_;
  FakeRelay relay_{behaviour_, record_};
  std::atomic<uint64_t> generation_{0};
};

class FakeWorker::Prefill : public v1::Prefill::CallbackService {
 public:
  Prefill(FakeBehaviour behaviour, FakeRecord& record)
      : behaviour_(std::move(behaviour)), record_(record) {}

  grpc::ServerUnaryReactor* Start(grpc::CallbackServerContext* context,
                                  const v1::StartRequest* request,
                                  v1::StartResponse* response) override {
    record_.Note([&](FakeRecord::Seen& seen) { seen.starts.push_back(*request); });
    if (behaviour_.start_hangs) return new HangingCall(record_);
    v1::ChunkReport& chunk = *response->mutable_report()->add_chunks();
    chunk.set_token_count(rpc::PromptIds(*request).size());
    return Answer(context, behaviour_.start);
  }
  grpc::ServerWriteReactor<v1::DecodeGenerateResponse>* Generate(
      grpc::CallbackServerContext*, const v1::StartRequest* request) override {
    v1::StartResponse prompt;
    const auto& ids = rpc::PromptIds(*request);
    prompt.mutable_report()->add_chunks()->set_token_count(ids.size());
    for (int i = 1; request->sampling().prompt_logprobs() && i < ids.size(); ++i) {
      prompt.add_prompt_tokens()->set_token_id(ids[i] + behaviour_.wrong_prompt_ids);
    }
    record_.Note([&](FakeRecord::Seen& seen) { seen.generations.push_back(*request); });
    return relay_.Answer(request->relay_id(), request->attempt_id(), prompt);
  }
  grpc::ServerWriteReactor<v1::RelayResponse>* Relay(grpc::CallbackServerContext* /*context*/,
                                                     const v1::RelayRequest* request) override {
    if (behaviour_.relay == FakeBehaviour::Relay::kNone) {
      return nullptr;  // UNIMPLEMENTED.
    }
    return relay_.Open(*request);
  }
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const v1::PrefillAbortRequest* request,
                                  v1::PrefillAbortResponse*) override {
    record_.Note(
        [&](FakeRecord::Seen& seen) { seen.prefill_aborts.push_back(request->attempt_id()); });
    return Answer(context, grpc::Status::OK);
  }

 private:
  const FakeBehaviour behaviour_;
  FakeRecord& record_;
  FakeRelay relay_{behaviour_, record_};
};

FakeWorker::FakeWorker(WorkerInfo info, const FakeBehaviour& behaviour)
    : info_(std::move(info)),
      decode_(std::make_unique<Decode>(info_.instance, behaviour, record_)),
      prefill_(std::make_unique<Prefill>(behaviour, record_)) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(decode_.get());
  builder.RegisterService(prefill_.get());
  server_ = builder.BuildAndStart();
  BATON_CHECK(server_ != nullptr) << "no free port for a fake worker";
  info_.grpc_address = "127.0.0.1:" + std::to_string(port);
}

FakeWorker::~FakeWorker() { Kill(); }

void FakeWorker::Kill() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  server_.reset();
  record_.Get();  // Orders the calls before what comes: ThreadSanitizer can't see gRPC's shutdown.
}

grpc::Status FakeWorker::Register(v1::Cluster::Stub& cluster) {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  v1::RegisterRequest request;
  *request.mutable_worker() = ToProto(info_);
  v1::RegisterResponse response;
  grpc::Status status = cluster.Register(&context, request, &response);
  router_incarnation_ = response.router_incarnation();
  return status;
}

grpc::Status FakeWorker::Beat(v1::Cluster::Stub& cluster) {
  grpc::ClientContext context;
  v1::HeartbeatRequest request;
  *request.mutable_instance() = rpc::ToProto(info_.instance);
  request.set_view_version(view_version_);
  request.set_router_incarnation(router_incarnation_);
  request.set_ready(true);
  for (const uint64_t incarnation : linked_) request.add_linked(incarnation);
  v1::HeartbeatResponse response;
  grpc::Status status = cluster.Heartbeat(&context, request, &response);
  if (!status.ok() || response.view_version() == view_version_) return status;
  view_version_ = response.view_version();
  linked_.clear();
  for (const v1::WorkerInfo& member : response.workers()) {
    linked_.push_back(member.instance().incarnation());
  }
  return status;
}

}  // namespace baton::router
