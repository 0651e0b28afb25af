// Answers in OpenAI's form: choices, the chunks of a stream, models. With vLLM's extensions
// (token_ids, prompt_token_ids, stop_reason).
#ifndef SERVICES_ROUTER_HTTP_OPENAI_FORMAT_H_
#define SERVICES_ROUTER_HTTP_OPENAI_FORMAT_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "services/router/gateway.h"
#include "services/router/http/json_input.h"

namespace baton::router {

// What every chunk of one answer repeats.
struct AnswerHeader {
  Endpoint endpoint = Endpoint::kCompletions;
  std::string id;  // "cmpl-..." or "chatcmpl-...".
  std::string model;
  int64_t created_s = 0;  // Unix time.
  bool logprobs = false;
  int64_t top_logprobs = 0;                // Alternatives in them.
  std::optional<int64_t> prompt_logprobs;  // The prompt's are told, with so many alternatives.
  bool token_ids = false;                  // return_token_ids.
  bool usage = false;             // stream_options.include_usage: every chunk has one, mostly null.
  bool continuous_usage = false;  // Every chunk has the usage so far.
  bool progress = false;          // stream_options.include_progress.
};

// A call of a tool, or what a chunk adds to it.
struct CallPart {
  int index = 0;
  std::string id;    // Empty in what follows the call's first chunk,
  std::string name;  // and so is the name.
  std::string arguments;
};

// One choice, or what a chunk adds to it.
struct ChoicePart {
  int index = 0;
  std::string text;
  std::string reasoning;
  std::vector<CallPart> calls;
  bool called = false;             // The choice has calls, in this chunk or before.
  std::vector<TokenPiece> echoed;  // The prompt's, before those of the text.
  std::vector<TokenPiece> tokens;
  std::optional<FinishReason> reason;
  std::string matched_stop;
  const std::vector<int32_t>* prompt_ids = nullptr;  // To be shown with it.
  std::vector<TokenPiece> prompt;                    // The prompt's tokens, for prompt_logprobs.
};

// OpenAI's list of tokens with their alternatives.
Json TokenLogprobs(std::span<const TokenPiece> tokens);

// vLLM's prompt_logprobs: for each token an object by ids, null for the first. Part of a choice of
// completions, and of a chat's whole answer.
Json PromptLogprobs(const std::vector<TokenPiece>& prompt, int64_t alternatives);

Json WholeChoice(const AnswerHeader& header, const ChoicePart& part);
Json ChunkChoice(const AnswerHeader& header, const ChoicePart& part);
Json RoleChoice(int index);  // The first of a chat.

// The answer or chunk around its choices.
Json WholeAnswer(const AnswerHeader& header, Json choices, const v1::Usage& usage,
                 const std::vector<std::string>& warnings);
// `usage`: so far; shown if it is asked for.
Json Chunk(const AnswerHeader& header, Json choice, const v1::Usage& usage);

// The bytes of one choice's chunks that have nothing but text: they differ in that alone, and most
// chunks of a stream are such. Not for headers whose chunks show tokens or the usage so far.
class TextChunk {
 public:
  TextChunk(const AnswerHeader& header, int index);
  std::string With(const std::string& text) const;  // Not empty.

 private:
  std::string before_;
  std::string behind_;
};
// Between a stream's head and the first token of choice `index`: without a choice, as the usage's
// chunk, so that clients that know no progress skip it.
Json ProgressChunk(const AnswerHeader& header, int index, PromptProgress progress,
                   const v1::Usage& usage);
Json UsageChunk(const AnswerHeader& header, const v1::Usage& usage);

Json ModelList(const v1::GetModelInfoResponse& model, int64_t created_s, int max_model_len);
Json ModelCard(const v1::GetModelInfoResponse& model, int64_t created_s, int max_model_len);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_OPENAI_FORMAT_H_
