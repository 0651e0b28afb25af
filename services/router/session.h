// One client's request on the way out: detokenizing, stop strings, timings, usage, and the sink.
#ifndef SERVICES_ROUTER_SESSION_H_
#define SERVICES_ROUTER_SESSION_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/tokenizer/stream/text_assembler.h"
#include "common/tokenizer/tokenizer.h"
#include "proto/baton/v1/common.pb.h"
#include "proto/baton/v1/inference.pb.h"
#include "services/router/core/router_core.h"
#include "services/router/gateway.h"
#include "services/router/request_trace.h"
#include "services/router/router_metrics.h"

namespace baton::router {

// What a session is made of; filled on the front's thread.
struct SessionRequest {
  uint64_t call_id = 0;
  std::string request_id;
  Endpoint endpoint = Endpoint::kGenerate;
  std::vector<int32_t> prompt_ids;  // And, as it comes, the text: others may have to go on with it.
  v1::SamplingParams sampling;      // Complete.
  std::string cache_salt;
  int priority = 0;
  std::vector<uint64_t> prefix;  // PrefixKeys of the prompt.
  uint64_t routing_key = 0;      // 0: the client gave none.
  std::string tenant;
  bool clip = false;         // max_tokens is a default, so fewer will do.
  std::string length_note;   // What to tell if it ends by its length; empty: nothing.
  FieldNames names;          // For errors that come later.
  bool prompt_only = false;  // max_tokens was 0: the one token that runs is not told.
  TextOptions text;
  std::vector<std::string> warnings;
  int64_t arrival_us = 0;
  int64_t deadline_us = kNeverUs;
  std::shared_ptr<ResponseSink> sink;
  RequestTrace trace;
};

// On the loop's thread. `tokenizer` and `metrics` outlive it.
class Session {
 public:
  Session(SessionRequest request, TextAssembler assembler, const Tokenizer& tokenizer,
          RouterMetrics& metrics);

  const SessionRequest& request() const { return request_; }
  uint64_t attempt_id() const { return attempt_id_; }
  // What workers read for the next attempt: the prompt and the text's first `drawn_tokens`.
  std::span<const int32_t> ToRead(int drawn_tokens) const {
    return std::span(request_.prompt_ids)
        .first(static_cast<size_t>(prompt_tokens_) + static_cast<size_t>(drawn_tokens));
  }
  RequestTrace& trace() { return request_.trace; }

  // The core's actions and events, in the order of a request's life.
  void BeginAttempt(uint64_t attempt_id, int64_t now_us);
  // The attempt generates `max_tokens` at most, which may be fewer than in the one before.
  void LimitOutput(int max_tokens);
  void OnReserved(int64_t now_us) { reserve_us_ = now_us - attempt_us_; }
  // The chain is done with so many of the prompt's tokens; told on when they have become more.
  void OnPromptProgress(int computed_tokens);
  void OnPrefillReport(v1::PrefillReport report) { report_ = std::move(report); }
  const v1::PrefillReport& prefill_report() const { return report_; }

  // Sends the prompt's tokens on: the first, of which nothing is told, and `tokens`. At most once,
  // before the first DeliverToken.
  void DeliverPrompt(const std::vector<SampledToken>& tokens);

  // Sends a token on. True if it completed a stop string: the core must be told, and nothing more
  // is sent.
  [[nodiscard]] bool DeliverToken(const SampledToken& token, int64_t now_us);

  // The one terminal call of the sink. Returns how the request ended.
  RequestEnd Finish(const FinishCall& finish, int64_t now_us);
  // The same without a word to the sink.
  RequestEnd Drop(const FinishCall& finish, int64_t now_us);

 private:
  // The core knows fields by names of its own.
  absl::Status NameOverflow(const absl::Status& status) const;
  RequestEnd EndOf(const FinishCall& finish, int64_t now_us) const;
  TokenPiece PieceOf(const SampledToken& token, int64_t text_offset) const;
  // Appends `piece` to the text, counts its characters and sends it with the tokens that it frees;
  // with `last` all that are held are free.
  void Send(TextAssembler::Piece piece, bool last);
  Outcome MakeOutcome(const FinishCall& finish, int64_t now_us);
  // The prompt's, of the last attempt: one that went on may have had some of the text cached, too.
  int CachedTokens() const { return std::min(report_.cached_tokens(), prompt_tokens_); }

  SessionRequest request_;
  const int prompt_tokens_;
  TextAssembler assembler_;
  const Tokenizer& tokenizer_;
  RouterMetrics& metrics_;
  uint64_t attempt_id_ = 0;
  int64_t paired_us_ = 0;   // When the first attempt began.
  int64_t attempt_us_ = 0;  // When the last one did.
  int64_t reserve_us_ = 0;  // In this attempt; 0 on a colocated chain.
  int64_t first_token_us_ = 0;
  int64_t last_token_us_ = 0;
  int computed_tokens_ = 0;  // Prompt tokens computed in this attempt.
  int completion_tokens_ = 0;
  std::optional<std::string> matched_stop_;
  std::vector<TokenPiece> held_;  // Tokens of text that a stop string may still cut off.
  int64_t sent_characters_ = 0;
  v1::PrefillReport report_;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_SESSION_H_
