// What an OutputParser makes of a text, put together, for tests.
#ifndef COMMON_TOKENIZER_CHAT_OUTPUT_TESTING_PARSED_ANSWER_H_
#define COMMON_TOKENIZER_CHAT_OUTPUT_TESTING_PARSED_ANSWER_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/tokenizer/chat/output/output_parser.h"
#include "nlohmann/json.hpp"

namespace baton::chat {

using Json = nlohmann::json;

inline OutputOptions With(ToolFormat tools, ReasoningFormat reasoning = ReasoningFormat::kNone) {
  OutputOptions options;
  options.tools = tools;
  options.reasoning = reasoning;
  options.offered = {{"get", {{"city"}}}, {"now", {}}};
  return options;
}

inline OutputOptions AllSpecial(OutputOptions options) {
  options.special_marks = AllMarks(options.tools, options.reasoning);
  return options;
}

// What comes out, put together: {"reasoning", "content", "calls", "malformed"}.
class Answer {
 public:
  explicit Answer(OutputOptions options)
      : parser_(std::make_shared<const OutputOptions>(std::move(options))) {}

  Answer& Add(std::string_view text) {
    Take(parser_.Append(text));
    return *this;
  }
  Json End() {
    Take(parser_.Finish());
    EXPECT_EQ(parser_.calls(), static_cast<int>(calls_.size()));
    return {{"reasoning", reasoning_},
            {"content", content_},
            {"calls", calls_},
            {"malformed", parser_.malformed()}};
  }
  const std::string& content() const { return content_; }

 private:
  void Take(const std::vector<OutputPiece>& pieces) {
    for (const OutputPiece& piece : pieces) {
      switch (piece.kind) {
        case OutputPiece::Kind::kContent:
          content_ += piece.text;
          break;
        case OutputPiece::Kind::kReasoning:
          reasoning_ += piece.text;
          break;
        case OutputPiece::Kind::kCall:
          calls_.push_back({piece.call.id, piece.call.name, piece.call.arguments});
          break;
      }
    }
  }

  OutputParser parser_;
  std::string content_;
  std::string reasoning_;
  Json calls_ = Json::array();
};

// The answer, the same for every cut of `text` in two and for single bytes.
inline Json Parse(const OutputOptions& options, const std::string& text) {
  Json whole = Answer(options).Add(text).End();
  for (size_t cut = 1; cut < text.size(); ++cut) {
    EXPECT_EQ(Answer(options).Add(text.substr(0, cut)).Add(text.substr(cut)).End(), whole) << cut;
  }
  Answer bytes(options);
  for (const char c : text) bytes.Add({&c, 1});
  EXPECT_EQ(bytes.End(), whole);
  return whole;
}

inline Json Said(const std::string& content, Json calls = Json::array(), int malformed = 0,
                 const std::string& reasoning = "") {
  return {{"reasoning", reasoning},
          {"content", content},
          {"calls", std::move(calls)},
          {"malformed", malformed}};
}

}  // namespace baton::chat

#endif  // COMMON_TOKENIZER_CHAT_OUTPUT_TESTING_PARSED_ANSWER_H_
