// Calls of tools in the texts that models write for them. Pure; any thread.
#ifndef COMMON_TOKENIZER_CHAT_OUTPUT_TOOL_CALL_H_
#define COMMON_TOKENIZER_CHAT_OUTPUT_TOOL_CALL_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/tokenizer/chat/output/output_format.h"

namespace baton::chat {

inline constexpr size_t kMaxNameBytes = 256;  // A call of a longer one is malformed.

struct ToolCall {
  std::string id;         // The model's own; empty: it gives none.
  std::string name;       // Not empty.
  std::string arguments;  // A JSON object as text, as the model wrote it where it wrote JSON.
};

// The functions that a request offers, by name.
struct OfferedTool {
  std::set<std::string> text_parameters;  // Those that the schema says are strings.
};
using OfferedTools = std::map<std::string, OfferedTool, std::less<>>;

// The calls in `body`: for a format with an end mark what stands between the marks, else the whole
// value with what stands before it. nullopt if it is malformed. `only_offered`: calls of other
// functions are malformed too. Work is linear in `body`; JSON nested deeper than 32 is malformed.
std::optional<std::vector<ToolCall>> ParseCalls(ToolFormat format, std::string_view body,
                                                const OfferedTools& offered, bool only_offered);

// The same for "[f(a=1), g()]".
std::optional<std::vector<ToolCall>> ParsePythonCalls(std::string_view body);

// Whether `body`, which is malformed and which an end mark follows, breaks off within a string: the
// mark may be text of it.
bool EndsInString(ToolFormat format, std::string_view body);

// Whether a body without end mark is a whole one if it is well-formed: it ends with what ends a
// call, and nothing could follow.
bool ShowsItsEnd(std::string_view body);

// Whether a text that begins with `beginning` may be a call in a format that needs no mark before
// it; unknown while there is too little of it.
enum class Plausible { kNo, kYes, kUnknown };
Plausible MayBeCall(ToolFormat format, std::string_view beginning);

// Finds the end of a value in brackets, as its text comes.
class ValueScanner {
 public:
  explicit ValueScanner(bool python) : python_(python) {}

  // `text`: the value so far, whose first byte opens a bracket. The offset behind its end, once it
  // is there; text that has been looked at is not looked at again.
  std::optional<size_t> End(std::string_view text);
  // What has been looked at ends in a string.
  bool in_string() const { return quote_ != 0; }

 private:
  bool python_;  // Strings may stand between ' too.
  size_t seen_ = 0;
  size_t depth_ = 0;
  char quote_ = 0;
  bool escaped_ = false;
};

// White space of JSON.
inline constexpr std::string_view kSpaces = " \t\r\n";
std::string_view Trim(std::string_view text);

}  // namespace baton::chat

#endif  // COMMON_TOKENIZER_CHAT_OUTPUT_TOOL_CALL_H_
