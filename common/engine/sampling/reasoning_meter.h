// How many tokens of reasoning a text has.
#ifndef COMMON_ENGINE_SAMPLING_REASONING_METER_H_
#define COMMON_ENGINE_SAMPLING_REASONING_METER_H_

#include <string>
#include <string_view>

namespace baton {

// For one text, whose tokens it is told in order. One thread.
class ReasoningMeter {
 public:
  // The marks are not empty. `inside`: the text begins within reasoning.
  ReasoningMeter(std::string begin, std::string end, bool inside);

  // The next token, as grammar::Vocabulary has it; empty for one that is no text.
  void Append(std::string_view bytes);

  bool inside() const { return phase_ == Phase::kInside; }
  // Whether there is or may be reasoning: neither has it ended nor has the text begun without it.
  bool may_come() const { return phase_ != Phase::kAfter; }
  int tokens() const { return tokens_; }  // Behind the mark of its beginning.
  // Whether the text so far ends with a whole character.
  bool at_character() const { return missing_ == 0; }

 private:
  enum class Phase { kBefore, kInside, kAfter };
  void FindBegin();

  const std::string begin_;
  const std::string end_;
  Phase phase_;
  // kBefore: the text behind white space. kInside: what the mark of the end may begin in.
  std::string text_;
  int tokens_ = 0;
  int missing_ = 0;  // Bytes of the last character.
};

}  // namespace baton

#endif  // COMMON_ENGINE_SAMPLING_REASONING_METER_H_
