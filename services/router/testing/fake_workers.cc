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
#include "common/rpc/grpc_status.h"
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

// What a colocated chain tells of a prompt.
v1::StartResponse PromptOf(const v1::StartRequest& request, const FakeBehaviour& behaviour) {
  v1::StartResponse prompt;
  const auto& ids = request.fixed_prompt_token_ids();
  prompt.mutable_report()->add_chunks()->set_token_count(ids.size());
  for (int i = 1; request.sampling().prompt_logprobs() && i < ids.size(); ++i) {
    prompt.add_prompt_tokens()->set_token_id(ids[i] + behaviour.wrong_prompt_ids);
  }
  return prompt;
}

}  // namespace

// Says by a relay what TokenWriter says by its stream.
class FakeRelays {
 public:
  FakeRelays(FakeBehaviour behaviour, FakeRecord& record)
      : behaviour_(std::move(behaviour)), record_(record) {
    relays_.SetBegin([this](const auto& call, auto& relay) { Begin(call, relay); });
  }

  // Null: the worker has none.
  grpc::Service* service() {
    return behaviour_.relay == FakeBehaviour::Relay::kNone ? nullptr : &relays_;
  }

 private:
  void Begin(const v1::RelayedCall& call, worker::TokenRelay& relay) {
    const auto stream = relay.Open(call.attempt_id(), {nullptr, {}, "", 0});
    BATON_CHECK(stream != nullptr) << "an attempt comes twice";
    stream->SetCancelHandler(
        [this] { record_.Note([](FakeRecord::Seen& seen) { ++seen.streams_cancelled; }); });
    record_.Note([&](FakeRecord::Seen& seen) {
      ++seen.streams;
      ++seen.relayed_streams;
      if (call.has_start()) seen.generations.push_back(call.start());
    });
    PushAll(call, relay, *stream);
    relays_.Flush();
    if (behaviour_.relay == FakeBehaviour::Relay::kBreaks) relays_.Close();
  }
  void PushAll(const v1::RelayedCall& call, worker::TokenRelay& relay,
               worker::TokenStream& stream) const {
    const auto push = [&stream](const v1::DecodeGenerateResponse& event) {
      BATON_CHECK(stream.Push(event)) << "the relay is full";
    };
    v1::DecodeGenerateResponse event;
    if (call.has_start()) {
      if (!behaviour_.start.ok()) return stream.Conclude(rpc::FromGrpc(behaviour_.start));
      if (behaviour_.start_hangs) return;
      *event.mutable_prompt() = PromptOf(call.start(), behaviour_);
      push(event);
    }
    if (behaviour_.relay == FakeBehaviour::Relay::kMalformed) {
      event.mutable_finished();
      BATON_CHECK(relay.Push(call.attempt_id() + 1, event)) << "the relay is full";
      push({});
    }
    for (const int32_t token : behaviour_.tokens) {
      event.mutable_token()->set_token_id(token);
      push(event);
    }
    if (behaviour_.hang_after_tokens || behaviour_.relay != FakeBehaviour::Relay::kWhole) return;
    if (!behaviour_.end.ok()) return stream.Conclude(rpc::FromGrpc(behaviour_.end));
    stream.Conclude(behaviour_.reason == v1::FINISH_REASON_STOP ? FinishReason::kStop
                                                                : FinishReason::kLength);
  }

  const FakeBehaviour behaviour_;
  FakeRecord& record_;
  worker::TokenRelays relays_;
};

class FakeWorker::Decode : public v1::Decode::CallbackService {
 public:
  Decode(InstanceRef self, FakeBehaviour behaviour, FakeRecord& record)
      : self_(std::move(self)), behaviour_(std::move(behaviour)), record_(record) {}

  grpc::ServerUnaryReactor* Reserve(grpc::CallbackServerContext* context,
                                    const v1::ReserveRequest* request,
                                    v1::ReserveResponse* response) override {
    record_.Note([&](FakeRecord::Seen& seen) { seen.reserves.push_back(*request); });
    *response->mutable_ticket() =
        rpc::ToProto(Ticket{self_, 0, ++generation_, request->prompt_token_ids_size(), 1});
    return Answer(context, behaviour_.reserve);
  }
  grpc::ServerWriteReactor<v1::DecodeGenerateResponse>* Generate(
      grpc::CallbackServerContext*, const v1::DecodeGenerateRequest*) override {
    record_.Note([](FakeRecord::Seen& seen) { ++seen.streams; });
    return new TokenWriter(behaviour_, record_);
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
    chunk.set_token_count(request->fixed_prompt_token_ids().size());
    return Answer(context, behaviour_.start);
  }
  grpc::ServerWriteReactor<v1::DecodeGenerateResponse>* Generate(
      grpc::CallbackServerContext*, const v1::StartRequest* request) override {
    record_.Note([&](FakeRecord::Seen& seen) {
      ++seen.streams;
      seen.generations.push_back(*request);
    });
    return new TokenWriter(behaviour_, record_, PromptOf(*request, behaviour_));
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
};

FakeWorker::FakeWorker(WorkerInfo info, const FakeBehaviour& behaviour)
    : info_(std::move(info)),
      decode_(std::make_unique<Decode>(info_.instance, behaviour, record_)),
      prefill_(std::make_unique<Prefill>(behaviour, record_)),
      relays_(std::make_unique<FakeRelays>(behaviour, record_)) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(decode_.get());
  builder.RegisterService(prefill_.get());
  if (relays_->service() != nullptr) builder.RegisterService(relays_->service());
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
  v1::RegisterRequest request;
  *request.mutable_worker() = ToProto(info_);
  return lease_.Register(cluster, request);
}

grpc::Status FakeWorker::Beat() {
  v1::HeartbeatRequest request;
  request.set_ready(true);
  for (const uint64_t incarnation : linked_) request.add_linked(incarnation);
  v1::HeartbeatResponse response;
  grpc::Status status = lease_.Beat(request, &response);
  if (!status.ok() || response.workers().empty()) return status;
  linked_.clear();
  for (const v1::WorkerInfo& member : response.workers()) {
    linked_.push_back(member.instance().incarnation());
  }
  return status;
}

}  // namespace baton::router
