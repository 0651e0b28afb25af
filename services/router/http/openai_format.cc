#include "services/router/http/openai_format.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/router/http/respond.h"

namespace baton::router {
namespace {

bool IsChat(const AnswerHeader& header) { return router::IsChat(header.endpoint); }

const char* ReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
  }
  return "stop";
}

// Calls are why a text that has some ended; if it was cut off, this is more important.
const char* ReasonOf(const ChoicePart& part) {
  const bool calls = part.called && *part.reason == FinishReason::kStop;
  return calls ? "tool_calls" : ReasonName(*part.reason);
}

Json CallsJson(const std::vector<CallPart>& calls, bool indexed) {
  Json list = Json::array();
  for (const CallPart& call : calls) {
    Json entry = {{"function", {{"arguments", call.arguments}}}};
    if (indexed) entry["index"] = call.index;
    if (!call.id.empty()) {
      entry["id"] = call.id;
      entry["type"] = "function";
      entry["function"]["name"] = call.name;
    }
    list.push_back(std::move(entry));
  }
  return list;
}

Json MessageJson(const ChoicePart& part) {
  const bool says_nothing = part.text.empty() && (part.called || !part.reasoning.empty());
  Json message = {{"role", "assistant"}, {"content", says_nothing ? Json() : Json(part.text)}};
  if (!part.reasoning.empty()) message["reasoning_content"] = part.reasoning;
  if (part.called) message["tool_calls"] = CallsJson(part.calls, /*indexed=*/false);
  return message;
}

Json UsageJson(const v1::Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens()},
          {"completion_tokens", usage.completion_tokens()},
          {"total_tokens", usage.prompt_tokens() + usage.completion_tokens()},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens()}}},
          {"completion_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens()}}}};
}

Json Bytes(const std::string& bytes) {
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return list;
}

Json Number(const std::optional<float>& value) { return value.has_value() ? Json(*value) : Json(); }

// The alternatives by their text, with the token itself. Different tokens may have one text (bytes
// that are no character): the likeliest stands for them.
Json TopByText(const TokenPiece& token, const std::string& text) {
  if (!token.logprob.has_value()) return nullptr;
  Json top = Json::object();
  top[text] = *token.logprob;
  for (const TokenPiece::Top& other : token.top) {
    Json& entry = top[WellFormed(other.bytes)];
    entry = entry.is_null() ? other.logprob : std::max(entry.get<float>(), other.logprob);
  }
  return top;
}

// Completions' four parallel lists.
Json CompletionLogprobs(const ChoicePart& part) {
  Json names = Json::array();
  Json logprobs = Json::array();
  Json tops = Json::array();
  Json offsets = Json::array();
  for (const auto* list : {&part.echoed, &part.tokens}) {
    for (const TokenPiece& token : *list) {
      const std::string text = WellFormed(token.bytes);
      names.push_back(text);
      logprobs.push_back(Number(token.logprob));
      tops.push_back(TopByText(token, text));
      offsets.push_back(token.text_offset);
    }
  }
  return {{"tokens", std::move(names)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

// An alternative's rank is its place; that of a token that is none of them is not known.
void AddById(int32_t id, const std::string& bytes, float logprob, const Json& rank, Json& list) {
  list[absl::StrCat(id)] = {
      {"logprob", logprob}, {"rank", rank}, {"decoded_token", WellFormed(bytes)}};
}

Json Logprobs(const AnswerHeader& header, const ChoicePart& part) {
  if (!header.logprobs) return nullptr;
  return IsChat(header) ? Json{{"content", TokenLogprobs(part.tokens)}} : CompletionLogprobs(part);
}

Json Envelope(const AnswerHeader& header, bool chunk) {
  const char* object = !IsChat(header) ? "text_completion"
                       : chunk         ? "chat.completion.chunk"
                                       : "chat.completion";
  return {{"id", header.id},
          {"object", object},
          {"created", header.created_s},
          {"model", header.model}};
}

// What whole choices and those of chunks have in common.
Json Choice(const AnswerHeader& header, const ChoicePart& part, Json logprobs) {
  Json choice = {{"index", part.index},
                 {"logprobs", std::move(logprobs)},
                 {"finish_reason", part.reason ? Json(ReasonOf(part)) : Json()}};
  if (part.reason.has_value()) {
    choice["stop_reason"] = part.matched_stop.empty() ? Json() : Json(part.matched_stop);
  }
  if (header.token_ids) {
    Json ids = Json::array();
    for (const TokenPiece& token : part.tokens) ids.push_back(token.id);
    choice["token_ids"] = std::move(ids);
    if (part.prompt_ids != nullptr) choice["prompt_token_ids"] = *part.prompt_ids;
  }
  return choice;
}

}  // namespace

Json TokenLogprobs(std::span<const TokenPiece> tokens) {
  Json list = Json::array();
  for (const TokenPiece& token : tokens) {
    Json top = Json::array();
    for (const TokenPiece::Top& other : token.top) {
      top.push_back({{"token", WellFormed(other.bytes)},
                     {"logprob", other.logprob},
                     {"bytes", Bytes(other.bytes)}});
    }
    list.push_back({{"token", WellFormed(token.bytes)},
                    {"logprob", Number(token.logprob)},
                    {"bytes", Bytes(token.bytes)},
                    {"top_logprobs", std::move(top)}});
  }
  return list;
}

Json PromptLogprobs(const std::vector<TokenPiece>& prompt, int64_t alternatives) {
  Json list = Json::array();
  for (const TokenPiece& token : prompt) {
    Json& entry = list.emplace_back();
    if (!token.logprob.has_value()) continue;
    entry = Json::object();
    AddById(token.id, token.bytes, *token.logprob, Json(), entry);
    for (size_t i = 0; i < token.top.size(); ++i) {
      const TokenPiece::Top& top = token.top[i];
      const bool shown = static_cast<int64_t>(i) < alternatives || top.id == token.id;
      if (shown) AddById(top.id, top.bytes, top.logprob, i + 1, entry);
    }
  }
  return list;
}

Json WholeChoice(const AnswerHeader& header, const ChoicePart& part) {
  Json choice = Choice(header, part, Logprobs(header, part));
  if (IsChat(header)) {
    choice["message"] = MessageJson(part);
  } else {
    choice["text"] = part.text;
    if (header.prompt_logprobs.has_value()) {
      choice["prompt_logprobs"] = PromptLogprobs(part.prompt, *header.prompt_logprobs);
    }
  }
  return choice;
}

Json ChunkChoice(const AnswerHeader& header, const ChoicePart& part) {
  const bool has_tokens = !part.echoed.empty() || !part.tokens.empty();
  Json choice = Choice(header, part, has_tokens ? Logprobs(header, part) : Json());
  if (!IsChat(header)) {
    choice["text"] = part.text;
  } else {
    choice["delta"] = Json::object();
    Json& delta = choice["delta"];
    if (!part.text.empty()) delta["content"] = part.text;
    if (!part.reasoning.empty()) delta["reasoning_content"] = part.reasoning;
    if (!part.calls.empty()) delta["tool_calls"] = CallsJson(part.calls, /*indexed=*/true);
  }
  return choice;
}

Json RoleChoice(int index) {
  return {{"index", index},
          {"logprobs", nullptr},
          {"finish_reason", nullptr},
          {"delta", {{"role", "assistant"}, {"content", ""}}}};
}

Json WholeAnswer(const AnswerHeader& header, Json choices, const v1::Usage& usage,
                 const std::vector<std::string>& warnings) {
  Json answer = Envelope(header, false);
  answer["choices"] = std::move(choices);
  answer["usage"] = UsageJson(usage);
  if (!warnings.empty()) answer["warnings"] = warnings;
  return answer;
}

Json Chunk(const AnswerHeader& header, Json choice, const v1::Usage& usage) {
  Json chunk = Envelope(header, true);
  chunk["choices"] = Json::array({std::move(choice)});
  if (header.usage) chunk["usage"] = header.continuous_usage ? UsageJson(usage) : Json();
  return chunk;
}

// Cut where a text stands that nothing before it has: keys are sorted, so choices come first.
TextChunk::TextChunk(const AnswerHeader& header, int index) {
  ChoicePart part;
  part.index = index;
  part.text = '\1';
  before_ = Dump(Chunk(header, ChunkChoice(header, part), {}));
  const std::string text = Dump(part.text);
  const size_t begin = before_.find(text);
  behind_ = before_.substr(begin + text.size());
  before_.resize(begin);
}

std::string TextChunk::With(const std::string& text) const {
  return absl::StrCat(before_, Dump(text), behind_);
}

Json ProgressChunk(const AnswerHeader& header, int index, PromptProgress progress,
                   const v1::Usage& usage) {
  Json chunk = Envelope(header, true);
  chunk["choices"] = Json::array();
  chunk["progress"] = {{"index", index},
                       {"computed_tokens", progress.computed_tokens},
                       {"prompt_tokens", progress.prompt_tokens}};
  if (header.usage) chunk["usage"] = header.continuous_usage ? UsageJson(usage) : Json();
  return chunk;
}

Json UsageChunk(const AnswerHeader& header, const v1::Usage& usage) {
  Json chunk = Envelope(header, true);
  chunk["choices"] = Json::array();
  chunk["usage"] = UsageJson(usage);
  return chunk;
}

Json ModelCard(const v1::GetModelInfoResponse& model, int64_t created_s, int max_model_len) {
  return {{"id", model.served_model_name()},
          {"object", "model"},
          {"created", created_s},
          {"owned_by", "baton"},
          {"max_model_len", max_model_len}};
}

Json ModelList(const v1::GetModelInfoResponse& model, int64_t created_s, int max_model_len) {
  return {{"object", "list"}, {"data", Json::array({ModelCard(model, created_s, max_model_len)})}};
}

}  // namespace baton::router
