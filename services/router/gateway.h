// The one path into the router that both fronts share: gRPC (grpc/) and OpenAI-compatible HTTP
// (http/) parse their own wire format into a GenerateCall and turn what a ResponseSink receives
// into their own wire format. Everything between is behind Gateway and the same for both:
// validation, messages, tokenizing, admission, the transaction, detokenizing, stop strings, seeds,
// deadlines.
#ifndef SERVICES_ROUTER_GATEWAY_H_
#define SERVICES_ROUTER_GATEWAY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tokenizer/chat/chat_template.h"
#include "common/tokenizer/chat/output/output_format.h"
#include "common/tracing/tracer.h"
#include "common/types/sampled_token.h"
#include "proto/baton/v1/common.pb.h"
#include "proto/baton/v1/inference.pb.h"
#include "services/router/core/router_core.h"

namespace baton::router {

// How tokens become text.
struct TextOptions {
  bool skip_special_tokens = true;
  // Special tokens that stay in the text all the same: the front takes it apart by them.
  std::vector<std::string> kept_marks;
  bool include_stop = false;  // A stop string that matched stays in the text.
};

using TokenIdsPrompt = std::vector<int64_t>;
using Prompt = std::variant<std::string, TokenIdsPrompt, ChatPrompt>;

// What the client calls the fields whose names differ between the fronts; errors name them so.
struct FieldNames {
  std::string prompt = "prompt";
  std::string max_tokens = "max_tokens";
  std::string top_logprobs = "top_logprobs";
  std::string structure = "sampling.structure";
};

// What the client called; label of the request metrics.
enum class Endpoint { kGenerate, kCompletions, kChatCompletions, kMessages, kResponses };

// Its prompt is a conversation, and its answer may call tools and reason.
inline bool IsChat(Endpoint endpoint) {
  return endpoint == Endpoint::kChatCompletions || endpoint == Endpoint::kMessages ||
         endpoint == Endpoint::kResponses;
}

struct GenerateCall {
  Endpoint endpoint = Endpoint::kGenerate;
  std::string request_id;  // Empty: the gateway chooses one.
  std::string model;       // Empty: the served model.
  Prompt prompt;
  // Adds what the model expects around a text prompt (Llama-3's <|begin_of_text|>).
  bool add_special_tokens = true;
  // Keeps only the last tokens of the prompt: so many, or with -1 as many as fit beside max_tokens.
  std::optional<int64_t> truncate_prompt_tokens;
  v1::SamplingParams sampling;  // As the client asked, unchecked; absent fields have defaults.
  TextOptions text;
  int64_t timeout_ms = 0;   // From arrival; 0: --request-timeout-ms, which also bounds it.
  std::string cache_salt;   // Only prompts with the same one share cached KV.
  int64_t priority = 0;     // Higher is served sooner (common/types/turn.h).
  std::string routing_key;  // Requests with the same one belong together; empty: none was given.
  std::string tenant;       // Whose limits it counts against.
  std::vector<std::string> warnings;  // What the front has to say; comes back in the outcome.
  FieldNames names;
  tracing::TraceContext caller;  // Whose trace it goes on with; "no trace": it begins one.
};

struct TokenPiece {
  struct Top {
    int32_t id = 0;
    std::string bytes;
    float logprob = 0;
  };
  int32_t id = 0;
  // The rest only if logprobs were asked for.
  std::string bytes;  // The token's own; may be half a UTF-8 character.
  // Natural logarithm. The first token of a prompt has none: nothing stands before it.
  std::optional<float> logprob;
  std::vector<Top> top;  // Most likely first; as many as top_logprobs.
  // Characters (Unicode code points) of the text before the character that this token begins or
  // goes on with; counted from the beginning of the prompt or of the continuation that it is in.
  int64_t text_offset = 0;
};

// What one decode step adds. `text` holds complete UTF-8 characters only and runs behind the tokens
// while a character is incomplete. With stop strings, text that might be the beginning of one is
// held back and its tokens with it, so that tokens of text that was cut off are never told.
struct TextPiece {
  std::string text;
  std::vector<TokenPiece> tokens;
};

struct Outcome {
  FinishReason reason = FinishReason::kStop;
  std::string matched_stop;  // The stop string that ended it, if one did; never part of the text.
  std::string text;          // Held back until now: belongs at the end of the continuation.
  v1::Usage usage;
  v1::RequestTiming timing;
  std::string chain_id;
  std::string decode_instance;
  int attempts = 1;
  int resumes = 0;
  std::vector<std::string> warnings;  // What was done otherwise than asked, for people.
};

// How far a prompt is.
struct PromptProgress {
  int computed_tokens = 0;  // Through every stage; it may begin anew when a request is retried.
  int prompt_tokens = 0;
};

// Receives one request's answer: any number of OnPromptTokens, any number of OnTokens, then exactly
// one of OnFinished and OnError; nothing after it, and nothing more once Cancel has taken effect.
// Called on the router's loop, one call at a time and possibly before Submit returns. An
// implementation must not block: it copies into its own queue (bounded, since a request has at most
// max_tokens pieces) and returns. The gateway lets go of the sink after the terminal call or the
// cancellation.
class ResponseSink {
 public:
  virtual ~ResponseSink() = default;
  // Called now and then during a long prompt, before the first OnTokens.
  virtual void OnPromptProgress(PromptProgress /*progress*/) {}
  // The prompt's tokens in order, perhaps in several pieces, all before the first OnTokens. Only
  // called if prompt_logprobs was asked for.
  virtual void OnPromptTokens(std::vector<TokenPiece> tokens) = 0;
  virtual void OnTokens(TextPiece piece) = 0;
  virtual void OnFinished(Outcome outcome) = 0;
  // FieldOf, LegOf and InstanceOf (common/base/status.h) say what the message says in words.
  virtual void OnError(absl::Status status) = 0;
};

struct Submitted {
  uint64_t call_id = 0;    // For Cancel.
  std::string request_id;  // As given or chosen.
  int prompt_tokens = 0;
};

struct Readiness {
  bool ready = false;
  std::string reason;  // What is missing, for the operator; empty if ready.
};

// Thread-safe. The implementation is RouterService's; tests of a front bring their own.
class Gateway {
 public:
  virtual ~Gateway() = default;

  // Checks, tokenizes on the caller's thread (milliseconds for a long text) and hands the request
  // to the core. An error here means that `sink` will never be called:
  //   INVALID_ARGUMENT with FieldOf, NOT_FOUND for another model's name (field "model"),
  //   UNAVAILABLE while stopping, RESOURCE_EXHAUSTED when the router's mailbox is full.
  // Through the sink: INVALID_ARGUMENT with FieldOf (longer than the KV cache of any pair),
  // ALREADY_EXISTS, RESOURCE_EXHAUSTED (too many requests), UNAVAILABLE (no ready
  // workers, or a worker failed), DEADLINE_EXCEEDED, ...
  virtual absl::StatusOr<Submitted> Submit(GenerateCall call,
                                           std::shared_ptr<ResponseSink> sink) = 0;

  // Counts a request that the front itself had to refuse (malformed JSON, a wrong type). Those that
  // Submit refuses are counted by it.
  virtual void CountRefused(Endpoint endpoint, const tracing::TraceContext& caller,
                            const absl::Status& status) = 0;

  // Null: requests are not traced, and fronts need not look for a caller's trace.
  virtual tracing::Tracer* tracer() const { return nullptr; }

  // The client went away: both legs are cancelled and the sink is let go without a terminal call.
  // Idempotent; unknown or finished calls are nothing.
  virtual void Cancel(uint64_t call_id) = 0;

  // Ends a running request: its sink gets OnFinished with kAbort. `done` is called on the loop
  // thread; NOT_FOUND if no running request has the id.
  virtual void Abort(const std::string& request_id, std::function<void(absl::Status)> done) = 0;
  // Ends every running request so; `done` gets their number, on the loop thread.
  virtual void AbortAll(std::function<void(int)> done) = 0;

  // Has every chain give up what it has cached and does not use. `done` gets the number of pages,
  // or the first error, on any thread.
  virtual void FlushCache(std::function<void(absl::StatusOr<int>)> done) = 0;

  // The ids of a call's prompt as Submit would send them, on the caller's thread; a front that
  // submits one prompt several times, or shows it, asks once. Errors as Submit's of the prompt.
  virtual absl::StatusOr<std::vector<int32_t>> Encode(const GenerateCall& call) const = 0;

  // Bounded by the context length like prompts. INVALID_ARGUMENT with field "text", "token_ids".
  virtual absl::StatusOr<std::vector<int32_t>> Tokenize(const std::string& text,
                                                        bool add_special_tokens) const = 0;
  virtual absl::StatusOr<std::string> Detokenize(const std::vector<int32_t>& ids,
                                                 bool skip_special_tokens) const = 0;

  virtual const v1::GetModelInfoResponse& model_info() const = 0;

  // How the model writes calls of tools and its reasoning.
  virtual const chat::ChatFormat& chat_format() const = 0;
  // Counts what a chat answer had of them.
  virtual void CountToolCalls(int parsed, int malformed) = 0;

  // Prompt and output of the largest request that the KV caches hold now, at most the model's
  // context; while no pair of workers is ready, as it was last.
  virtual int largest_request_tokens() const { return model_info().max_context_tokens(); }

  // The header, or metadata, that has a request's routing key; empty: there is none.
  virtual std::string_view hash_header() const { return ""; }

  // The header, or metadata, that names a request's tenant; empty: none does.
  virtual std::string_view tenant_header() const { return ""; }
  // Whether those without a name are told apart by their API keys.
  virtual bool asks_for_keys() const { return false; }

  // What a request would meet now: ready if it would be served or wait for a pair of workers that
  // is expected; not ready if it would be refused.
  virtual Readiness readiness() const = 0;
  // What /metrics answers (kMetricsContentType of common/telemetry/metrics.h).
  virtual std::string ScrapeMetrics() const = 0;
  // Forward progress of the loop that owns every request: false means "restart me".
  virtual bool alive() const = 0;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_GATEWAY_H_
