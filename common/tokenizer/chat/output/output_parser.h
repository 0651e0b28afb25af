// Takes a model's text apart as it comes: reasoning, content, calls of tools.
//
// What comes out depends on the text alone, not on the pieces that it arrives in, but for where
// the pieces of one kind are cut. A call comes out whole, once it is known to be well-formed: what
// is malformed is content, as it would be without a parser. White space next to a mark is dropped.
#ifndef COMMON_TOKENIZER_CHAT_OUTPUT_OUTPUT_PARSER_H_
#define COMMON_TOKENIZER_CHAT_OUTPUT_OUTPUT_PARSER_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/tokenizer/chat/output/output_format.h"
#include "common/tokenizer/chat/output/tool_call.h"

namespace baton::chat {

struct OutputOptions {
  // A longer call is malformed, and so is one past the most calls.
  static constexpr size_t kMaxCallBytes = 1 << 20;
  static constexpr int kMaxCalls = 128;

  ToolFormat tools = ToolFormat::kNone;
  ReasoningFormat reasoning = ReasoningFormat::kNone;
  bool starts_in_reasoning = false;  // The prompt ends inside it.
  OfferedTools offered;
  bool parallel_calls = true;  // Else calls after the first are left out.
  // Marks that content never shows: ChatFormat::special_marks.
  std::vector<std::string> special_marks;
};

// Where an answer begins whose prompt ends with `tail`, special tokens shown.
bool StartsInReasoning(ReasoningFormat format, std::string_view tail);
// The same for an answer that goes on with a message's `content`.
bool BreaksOffInReasoning(ReasoningFormat format, std::string_view content);

struct OutputPiece {
  enum class Kind { kContent, kReasoning, kCall };
  Kind kind = Kind::kContent;
  std::string text;  // Content's or reasoning's; not empty.
  ToolCall call;
};

// One answer's. Holds at most twice kMaxCallBytes and a mark between calls, and white space. One
// thread.
class OutputParser {
 public:
  explicit OutputParser(std::shared_ptr<const OutputOptions> options);

  // Takes whole characters.
  std::vector<OutputPiece> Append(std::string_view text);
  // The text has ended.
  std::vector<OutputPiece> Finish();

  int calls() const { return calls_; }  // That came out.
  // Whether what follows is reasoning, as far as is known.
  bool in_reasoning() const {
    return state_ == State::kReasoning ||
           (state_ == State::kLead && lead_.otherwise == State::kReasoning);
  }
  int malformed() const { return malformed_; }

 private:
  enum class State { kLead, kText, kReasoning, kBody };
  // kAround: dropped like kDrop, and calls are near.
  enum class Act { kBeginCall, kBeginReasoning, kAround, kDrop };
  struct Mark {
    std::string_view text;
    Act act;
    bool special;  // A special token.
  };
  // What may follow white space.
  struct Lead {
    bool reasoning = false;   // The mark of reasoning,
    bool value = false;       // a call that needs no mark, or
    bool after_call = false;  // one more of these, perhaps behind a ';'.
    State otherwise = State::kText;
  };

  void AddMarks();
  void AddMark(std::string_view text, Act act);
  void Drain();  // Takes what stands in `input_`.
  void Run();
  bool Step();  // False: needs more text.
  bool StepLead();
  bool StepText();
  bool StepReasoning();
  bool StepBody();
  bool StepMarkedBody();
  bool StepValueBody();
  void FinishBody();  // The text has ended in a body behind a mark.

  bool needs_no_mark() const;
  Lead LeadOfContent(bool reasoning) const;
  void Begin(const Mark& mark);
  void BeginCall(std::string_view mark);
  // Takes the calls whose text is the first `length` bytes of what is pending, then `end` bytes of
  // their end. False: it is malformed, and nothing has changed.
  bool TakeCalls(size_t length, size_t end);
  void EndCall(size_t length, size_t end);
  // The call between the mark and `end` bytes behind the first `length` is malformed. A mark in it
  // may begin another.
  void RefuseMarked(size_t length, size_t end);
  void GiveBack(size_t length);  // The mark and so much of what is pending are content.
  void LookAgain();              // The pending text is no call.
  void Unread();                 // What is pending will be taken from `input_` again.

  void Say(OutputPiece::Kind kind, std::string_view text);
  void AtMark();                                          // Drops white space on both sides.
  std::string WithoutMarks(std::string_view text) const;  // But for special ones.

  const std::shared_ptr<const OutputOptions> options_;
  const ReasoningMarks reasoning_;
  const ToolMarks& tool_marks_;
  std::vector<Mark> marks_;  // Looked for in content.

  State state_ = State::kText;
  Lead lead_;
  std::string input_;    // What is pending, and what follows it.
  size_t taken_ = 0;     // So much of it is pending or decided on.
  std::string pending_;  // Not decided on yet.
  size_t scanned_ = 0;   // So much of it holds no end of a call.
  // In a body:
  std::string_view begun_by_;  // The mark; empty: none.
  bool is_plausible_ = false;
  bool only_marked_ = false;  // What looked like a call without mark was none.
  std::optional<ValueScanner> scanner_;
  int passed_ends_ = 0;   // Marks of its end that seem to stand in a string,
  size_t first_end_ = 0;  // and where the first of them is.
  int begun_again_ = 0;   // Calls that began in malformed ones.

  bool fresh_ = false;  // Nothing has been said since a mark.
  std::string spaces_;  // White space that is dropped if a mark follows.
  OutputPiece::Kind spaces_kind_ = OutputPiece::Kind::kContent;
  std::vector<OutputPiece> out_;
  int calls_ = 0;
  int malformed_ = 0;
};

}  // namespace baton::chat

#endif  // COMMON_TOKENIZER_CHAT_OUTPUT_OUTPUT_PARSER_H_
