// A choice's text taken apart into what an answer of OpenAI's has fields for.
#ifndef SERVICES_ROUTER_HTTP_CHOICE_PARSER_H_
#define SERVICES_ROUTER_HTTP_CHOICE_PARSER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/tokenizer/chat/output/output_parser.h"
#include "services/router/http/openai_format.h"

namespace baton::router {

// One thread.
class ChoiceParser {
 public:
  // `answer_id` and `choice` make the ids of calls: the same for the same, and no two alike.
  ChoiceParser(std::shared_ptr<const chat::OutputOptions> options, bool include_reasoning,
               const std::string& answer_id, size_t choice);

  // What the text of so many tokens adds, in order; each is a piece of content, of reasoning, the
  // beginning of a call or its arguments.
  std::vector<ChoicePart> Append(const std::string& text, size_t tokens);
  // The same for the last of it.
  std::vector<ChoicePart> Finish(const std::string& text);

  int calls() const { return parser_.calls(); }
  int malformed() const { return parser_.malformed(); }
  // Tokens of reasoning and its marks; one that has other text too counts.
  int reasoning_tokens() const { return static_cast<int>(reasoning_tokens_); }

 private:
  void Add(std::vector<chat::OutputPiece> pieces, std::vector<ChoicePart>& parts);
  std::string IdOf(const chat::ToolCall& call) const;

  const bool include_reasoning_;
  const bool short_ids_;
  const uint64_t seed_;
  chat::OutputParser parser_;
  int begun_ = 0;
  size_t reasoning_tokens_ = 0;
  size_t undecided_tokens_ = 0;  // Nothing has come of them yet.
};

// Puts together what Append and Finish gave.
void Merge(ChoicePart from, ChoicePart& to);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_CHOICE_PARSER_H_
