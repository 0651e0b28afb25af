// RouterShell's side towards the fronts: what runs on their threads.
#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "services/router/core/prefix_keys.h"
#include "services/router/router_shell.h"

namespace baton::router {
namespace {

// The tokenizer speaks of "text"; clients know the field by its name. What its patterns take too
// long for is the text's fault as well, and won't pass: it is no overload. That the model has no
// chat template is not the client's fault, but what it can mend: it is no error of the server.
absl::Status NameField(const absl::Status& status, const std::string& field) {
  const bool of_field = absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status) ||
                        absl::IsFailedPrecondition(status);
  if (!of_field || FieldOf(status).has_value()) return status;
  return InvalidField(field, std::string(status.message()));
}

// What a chat template shows as today's date.
std::tm LocalTime() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

}  // namespace

absl::StatusOr<Submitted> RouterShell::Submit(GenerateCall call,
                                              std::shared_ptr<ResponseSink> sink) {
  const Endpoint endpoint = call.endpoint;
  const std::string request_id = call.request_id;
  RequestTrace trace(tracer(), call.caller, endpoint, config_.served_model_name, NowUs());
  absl::StatusOr<Submitted> submitted = Admit(std::move(call), std::move(sink), trace);
  if (!submitted.ok()) Refuse(endpoint, request_id, trace, submitted.status());
  return submitted;
}

void RouterShell::Refuse(Endpoint endpoint, const std::string& request_id, RequestTrace& trace,
                         const absl::Status& status) {
  trace.Refuse(status, NowUs());
  metrics_->CountRefused(endpoint, status);
  traffic_.LogRefused(endpoint, request_id, trace.trace_id(), status);
}

// `trace` comes back as it was unless the call is admitted.
absl::StatusOr<Submitted> RouterShell::Admit(GenerateCall call, std::shared_ptr<ResponseSink> sink,
                                             RequestTrace& trace) {
  const int64_t arrival_us = NowUs();
  BATON_RETURN_IF_ERROR(CheckCall(call, limits_));
  BATON_RETURN_IF_ERROR(CheckStructure(call));
  BATON_RETURN_IF_ERROR(TakeSlot());
  absl::StatusOr<SessionRequest> request = Prepare(std::move(call), arrival_us);
  if (!request.ok()) {
    ReturnSlot();
    return request.status();
  }
  request->call_id = next_call_id_++;
  request->sink = std::move(sink);
  TextAssembler::Options text;
  text.skip_special_tokens = request->text.skip_special_tokens;
  text.stop.assign(request->sampling.stop().begin(), request->sampling.stop().end());
  text.min_tokens = request->sampling.min_tokens();
  for (const std::string& mark : request->text.kept_marks) {
    if (const auto id = tokenizer_->TokenId(mark)) text.kept_special_tokens.push_back(*id);
  }
  absl::StatusOr<TextAssembler> assembler = TextAssembler::Create(tokenizer_.get(), text);
  if (!assembler.ok()) {
    ReturnSlot();
    return assembler.status();
  }
  trace.Accept(request->request_id, request->sampling, static_cast<int>(request->prompt_ids.size()),
               NowUs());
  request->trace = std::move(trace);
  const Submitted submitted = {request->call_id, request->request_id,
                               static_cast<int>(request->prompt_ids.size())};
  auto session = std::make_shared<std::unique_ptr<Session>>(std::make_unique<Session>(
      *std::move(request), *std::move(assembler), *tokenizer_, *metrics_));
  if (!loop_.RunOrPost([this, session] { Begin(std::move(*session)); })) {
    trace = std::move((*session)->trace());
    ReturnSlot();
    return WithLeg(absl::ResourceExhaustedError("the router is overloaded; try again later"),
                   "router", "");
  }
  return submitted;
}

absl::Status RouterShell::CheckStructure(const GenerateCall& call) {
  if (!call.sampling.has_structure()) return absl::OkStatus();
  return structures_.Check(call.sampling.structure(), call.names.structure);
}

absl::Status RouterShell::TakeSlot() {
  MutexLock lock(&mutex_);
  if (stopping_) {
    return WithLeg(
        EndedByDrain(absl::UnavailableError("the router is shutting down; send the request again")),
        "router", "");
  }
  if (in_flight_ >= config_.options.max_concurrent_streams()) {
    return WithLeg(absl::ResourceExhaustedError(absl::StrCat(
                       "the router is serving ", in_flight_,
                       " requests, the most it takes (--max-concurrent-streams); try again later")),
                   "router", "");
  }
  ++in_flight_;
  return absl::OkStatus();
}

void RouterShell::ReturnSlot() {
  MutexLock lock(&mutex_);
  --in_flight_;
}

absl::StatusOr<SessionRequest> RouterShell::Prepare(GenerateCall call, int64_t arrival_us) const {
  SessionRequest request;
  BATON_ASSIGN_OR_RETURN(request.prompt_ids, EncodePrompt(call));
  TruncatePrompt(call, limits_, request.prompt_ids);
  BATON_RETURN_IF_ERROR(CheckContext(call, request.prompt_ids.size(), limits_));
  BATON_RETURN_IF_ERROR(CheckPromptLogprobs(call, request.prompt_ids.size()));
  request.warnings = std::move(call.warnings);
  request.length_note = DefaultNote(call, request.prompt_ids.size(), limits_);
  request.clip = !call.sampling.has_max_tokens();
  request.names = call.names;
  request.prompt_only = call.sampling.has_max_tokens() && call.sampling.max_tokens() == 0;
  request.text = call.text;
  request.request_id =
      call.request_id.empty() ? "req-" + RandomHex(12) : std::move(call.request_id);
  request.endpoint = call.endpoint;
  request.cache_salt = std::move(call.cache_salt);
  request.prefix = PrefixKeys(request.prompt_ids, request.cache_salt);
  request.tenant = std::move(call.tenant);
  if (!call.routing_key.empty()) request.routing_key = RoutingKey(call.routing_key);
  request.priority = static_cast<int>(call.priority);
  request.sampling = ResolveSampling(call.sampling, static_cast<int>(request.prompt_ids.size()),
                                     EntropySeed(), limits_);
  const int64_t timeout_ms = call.timeout_ms > 0
                                 ? std::min(call.timeout_ms, config_.options.request_timeout_ms())
                                 : config_.options.request_timeout_ms();
  request.arrival_us = arrival_us;
  request.deadline_us = arrival_us + timeout_ms * 1000;
  return request;
}

absl::StatusOr<std::vector<int32_t>> RouterShell::EncodePrompt(const GenerateCall& call) const {
  if (const auto* ids = std::get_if<TokenIdsPrompt>(&call.prompt)) {
    return std::vector<int32_t>(ids->begin(), ids->end());  // CheckCall saw to their range.
  }
  absl::StatusOr<std::vector<int32_t>> encoded;
  if (const auto* text = std::get_if<std::string>(&call.prompt)) {
    // A raw prompt is the client's to the last token, so special tokens may be written in it; what
    // stands in a chat message never becomes one.
    encoded = tokenizer_->Encode(*text, call.add_special_tokens, /*parse_special=*/true);
  } else {
    const auto& chat = std::get<ChatPrompt>(call.prompt);
    encoded = EncodeChat(*tokenizer_, *chat_template_, chat, LocalTime());
  }
  if (!encoded.ok()) return NameField(encoded.status(), call.names.prompt);
  return encoded;
}

absl::StatusOr<std::vector<int32_t>> RouterShell::Encode(const GenerateCall& call) const {
  BATON_RETURN_IF_ERROR(CheckCall(call, limits_));
  BATON_ASSIGN_OR_RETURN(std::vector<int32_t> ids, EncodePrompt(call));
  TruncatePrompt(call, limits_, ids);
  return ids;
}

void RouterShell::CountRefused(Endpoint endpoint, const tracing::TraceContext& caller,
                               const absl::Status& status) {
  RequestTrace trace(tracer(), caller, endpoint, config_.served_model_name, NowUs());
  Refuse(endpoint, "", trace, status);
}

void RouterShell::Cancel(uint64_t call_id) {
  // A loop that has stopped has ended every request.
  (void)loop_.Post([this, call_id] {
    DropCall(call_id, absl::CancelledError("the client went away"), /*tell=*/false);
  });
}

void RouterShell::Abort(const std::string& request_id, std::function<void(absl::Status)> done) {
  const uint64_t rpc_id = next_rpc_id_++;
  const bool posted = loop_.Post([this, rpc_id, request_id, done]() mutable {
    status_calls_[rpc_id] = std::move(done);
    Dispatch(AbortCalled{rpc_id, request_id});
  });
  if (!posted) done(absl::UnavailableError("the router is shutting down"));
}

void RouterShell::FlushCache(std::function<void(absl::StatusOr<int>)> done) {
  const bool posted = loop_.Post([this, done] {
    std::vector<std::pair<Role, InstanceRef>> caches;
    for (const Worker& worker : core_.membership().Workers()) {
      const WorkerInfo& info = worker.info;
      if (info.place() == 0) caches.emplace_back(info.role, info.instance);  // It plans.
    }
    Dispatch(CachesFlushed{});
    legs_->FlushCaches(caches, done);
  });
  if (!posted) done(absl::UnavailableError("the router is shutting down"));
}

void RouterShell::AbortAll(std::function<void(int)> done) {
  const bool posted = loop_.Post([this, done] {
    std::vector<std::string> requests;
    requests.reserve(sessions_.size());
    for (const auto& [call_id, session] : sessions_) {
      requests.push_back(session->request().request_id);
    }
    for (const std::string& request : requests)
      Dispatch(AbortCalled{0, request});  // Call 0: no caller.
    done(static_cast<int>(requests.size()));
  });
  if (!posted) done(0);
}

absl::StatusOr<std::vector<int32_t>> RouterShell::Tokenize(const std::string& text,
                                                           bool add_special_tokens) const {
  BATON_RETURN_IF_ERROR(CheckText("text", text, limits_));
  auto ids = tokenizer_->Encode(text, add_special_tokens, /*parse_special=*/true);
  if (!ids.ok()) return NameField(ids.status(), "text");
  return ids;
}

absl::StatusOr<std::string> RouterShell::Detokenize(const std::vector<int32_t>& ids,
                                                    bool skip_special_tokens) const {
  if (ids.size() > static_cast<size_t>(config_.max_context_tokens)) {
    return InvalidField("token_ids",
                        absl::StrCat("has ", ids.size(), " ids, more than the context ", "of ",
                                     config_.max_context_tokens, " tokens"));
  }
  auto text = tokenizer_->Decode(ids, skip_special_tokens);
  if (!text.ok()) return NameField(text.status(), "token_ids");
  return text;
}

int RouterShell::largest_request_tokens() const {
  MutexLock lock(&mutex_);
  return static_cast<int>(largest_request_tokens_);
}

Readiness RouterShell::readiness() const {
  MutexLock lock(&mutex_);
  return readiness_;
}

}  // namespace baton::router
