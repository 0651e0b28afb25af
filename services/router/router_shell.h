// Runs RouterCore: one loop thread owns the core, every session and the legs. Fronts, workers and
// gRPC's callbacks post to it; the core's actions become calls (legs/) and answers (session.h).
#ifndef SERVICES_ROUTER_ROUTER_SHELL_H_
#define SERVICES_ROUTER_ROUTER_SHELL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/event_loop.h"
#include "common/base/serial_events.h"
#include "common/base/sync.h"
#include "common/tokenizer/chat/chat_template.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tracing/tracing.h"
#include "services/router/core/router_core.h"
#include "services/router/gateway.h"
#include "services/router/legs/legs.h"
#include "services/router/router_config.h"
#include "services/router/router_metrics.h"
#include "services/router/session.h"
#include "services/router/structure_check.h"
#include "services/router/traffic_log.h"
#include "services/router/validate.h"

namespace baton::router {

class RouterShell : public Gateway {
 public:
  RouterShell(RouterConfig config, std::unique_ptr<Tokenizer> tokenizer,
              std::unique_ptr<ChatTemplate> chat_template);
  ~RouterShell() override;  // Stops without grace.

  // `on_readiness` is told of every change, on the loop's thread.
  void Start(std::function<void(bool ready)> on_readiness);

  // Not ready from now on; new requests are taken for `settle_ms` more, and those that run for
  // `timeout_ms` after that get their end then (RouterDrainBegan). Workers are heard all the time.
  void BeginDrain(int64_t settle_ms, int64_t timeout_ms);
  // Whether no request runs and none is taken any more, at the latest after `limit_ms`; what became
  // of them, and what still runs.
  bool AwaitDrained(int64_t limit_ms);
  RouterLoad load();
  // Refuses new requests from now on: not ready.
  void BeginStop();
  // After BeginStop: lets running requests finish for `grace_ms`, ends the others with UNAVAILABLE,
  // and stops the loop. Idempotent.
  void Stop(int64_t grace_ms);

  // Gateway; any thread.
  absl::StatusOr<Submitted> Submit(GenerateCall call, std::shared_ptr<ResponseSink> sink) override;
  void CountRefused(Endpoint endpoint, const tracing::TraceContext& caller,
                    const absl::Status& status) override;
  tracing::Tracer* tracer() const override {
    return tracing_ == nullptr ? nullptr : &tracing_->tracer();
  }
  void Cancel(uint64_t call_id) override;
  void Abort(const std::string& request_id, std::function<void(absl::Status)> done) override;
  void AbortAll(std::function<void(int)> done) override;
  void FlushCache(std::function<void(absl::StatusOr<int>)> done) override;
  absl::StatusOr<std::vector<int32_t>> Encode(const GenerateCall& call) const override;
  absl::StatusOr<std::vector<int32_t>> Tokenize(const std::string& text,
                                                bool add_special_tokens) const override;
  absl::StatusOr<std::string> Detokenize(const std::vector<int32_t>& ids,
                                         bool skip_special_tokens) const override;
  const v1::GetModelInfoResponse& model_info() const override { return model_info_; }
  const chat::ChatFormat& chat_format() const override { return config_.chat_format; }
  void CountToolCalls(int parsed, int malformed) override {
    metrics_->CountToolCalls(parsed, malformed);
  }
  int largest_request_tokens() const override;
  std::string_view hash_header() const override { return config_.options.hash_header(); }
  std::string_view tenant_header() const override { return config_.options.tenant_header(); }
  bool asks_for_keys() const override {
    return !config_.options.api_key().empty() || !config_.options.api_key_file().empty();
  }
  Readiness readiness() const override;
  std::string ScrapeMetrics() const override { return metrics_->Scrape(); }
  // For the HTTP front; the shell outlives it.
  HttpServerObserver http_observer() { return metrics_->http_observer(); }
  bool alive() const override;

  // The cluster; any thread. What a worker's lease call is told, on the loop's thread.
  struct LeaseCalls {
    std::function<void()> granted;
    std::function<void(const AnswerHeartbeat&)> answer;  // To each heartbeat.
    std::function<void()> ask;                           // For a heartbeat at once.
    std::function<void(const absl::Status&)> end;        // The last.
  };
  // Never 0.
  uint64_t NewLeaseCall() { return next_rpc_id_++; }
  // All three: false when the loop takes nothing more, and the call is told nothing of it.
  bool AskLease(LeaseAsked asked, LeaseCalls calls);
  bool Heartbeat(HeartbeatReceived heartbeat);  // One at a time of each call.
  bool BreakLease(uint64_t rpc_id);             // The worker's side is gone.
  // How far stage 0 of a chain is with prompts, of this router's and of others': attempt ids and
  // tokens.
  void NoteProgress(std::vector<std::pair<uint64_t, int>> prompts);
  // Both: `done` is called once, on the loop's thread, or at once with UNAVAILABLE when the loop
  // takes nothing more.
  void Drain(const std::string& instance_id, std::function<void(absl::Status)> done);
  // The membership is null with an error, and not to be kept.
  void List(const std::function<void(absl::Status, const Membership*, int64_t now_us)>& done);

  const RouterConfig& config() const { return config_; }
  // Differs between lives of a router; never 0.
  uint64_t incarnation() const { return incarnation_; }

 private:
  // On the front's thread.
  absl::StatusOr<std::vector<int32_t>> EncodePrompt(const GenerateCall& call) const;
  absl::StatusOr<SessionRequest> Prepare(GenerateCall call, int64_t arrival_us) const;
  absl::StatusOr<Submitted> Admit(GenerateCall call, std::shared_ptr<ResponseSink> sink,
                                  RequestTrace& trace);
  void Refuse(Endpoint endpoint, const std::string& request_id, RequestTrace& trace,
              const absl::Status& status);
  absl::Status TakeSlot();
  void ReturnSlot();

  // On the loop's thread.
  void Begin(std::unique_ptr<Session> session);
  void Dispatch(Event event);
  void HandleOne(const Event& event);
  void Perform(AnswerLease& action);
  void Perform(ReplyDrain& action) { Answer(action.rpc_id, action.status); }
  void Perform(ReplyAbort& action) { Answer(action.rpc_id, action.status); }
  void Perform(AnswerHeartbeat& action);
  void Perform(AskHeartbeat& action);
  void Perform(EndLease& action) { EndLeaseCall(action.rpc_id, action.status); }
  void HearLeg(Event event);
  void Perform(Reserve& action);
  void Perform(OpenStream& action);
  void Perform(StartPrefill& action);
  void Perform(StartGeneration& action);
  void Perform(AbortPrefill& action);
  void Perform(AbortDecode& action);
  void Perform(DeliverPrompt& action);
  void Perform(DeliverToken& action);
  void Perform(FinishCall& action);
  void Answer(uint64_t rpc_id, const absl::Status& status);
  void EndLeaseCall(uint64_t rpc_id, const absl::Status& status);
  void EndLeases();
  static absl::Status Stopping();  // Why nothing more is taken.
  void DropCall(uint64_t call_id, const absl::Status& outcome, bool tell);
  void LogDecisions(const SessionRequest& request, const FinishCall& finish);
  void EndSession(uint64_t call_id);
  Session* BeginAttempt(uint64_t call_id, uint64_t attempt_id, int max_tokens, int64_t now_us);
  Session* SessionOf(uint64_t call_id);
  Session* SessionOfAttempt(uint64_t attempt_id);
  std::string AddressOf(const InstanceRef& instance) const;
  // Whether some pair would take it whose processes are here, and not all ready.
  bool FitsWhenReady(int prompt_tokens, const SessionRequest& request) const;
  int64_t OnWake(int64_t now_us);
  // Any thread: whether the call's text can be kept to what it must be.
  absl::Status CheckStructure(const GenerateCall& call);
  void LogTroubles(const RouterLoad& load);
  void Refresh(int64_t now_us);

  const RouterConfig config_;
  const uint64_t incarnation_;
  const RequestLimits limits_;
  const std::unique_ptr<Tokenizer> tokenizer_;
  const std::unique_ptr<ChatTemplate> chat_template_;
  const v1::GetModelInfoResponse model_info_;
  const std::unique_ptr<RouterMetrics> metrics_;
  const std::unique_ptr<tracing::Tracing> tracing_;  // Null: off. Flushed when the shell goes.
  TrafficLog traffic_;
  std::function<void(bool)> on_readiness_;
  std::atomic<uint64_t> next_call_id_{1};
  std::atomic<uint64_t> next_rpc_id_{1};
  std::atomic<int64_t> last_wake_us_{0};
  StructureCheck structures_;

  mutable Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  int in_flight_ ABSL_GUARDED_BY(mutex_) = 0;  // Submitted, and not ended.
  Readiness readiness_ ABSL_GUARDED_BY(mutex_);
  int64_t largest_request_tokens_ ABSL_GUARDED_BY(mutex_);

  EventLoop loop_;
  // Everything below belongs to the loop's thread.
  RouterCore core_;
  std::unique_ptr<Legs> legs_;
  std::unordered_map<uint64_t, std::unique_ptr<Session>> sessions_;  // By client.
  std::unordered_map<uint64_t, uint64_t> call_of_attempt_;
  std::unordered_map<uint64_t, std::function<void(absl::Status)>> status_calls_;
  std::unordered_map<uint64_t, LeaseCalls> lease_calls_;
  std::vector<Action> actions_;  // What the event that is handled leads to.
  SerialEvents<Event> events_{[this](const Event& event) { HandleOne(event); }};
  bool changed_ = true;  // Since the last Refresh.
  int64_t refreshed_us_ = 0;
  RouterLoad told_;                // What the log has told of it.
  uint64_t channels_version_ = 0;  // By whose members the legs' channels were last pruned.
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_ROUTER_SHELL_H_
