// The grammar of calls, for answers that must be or may have some.
#ifndef COMMON_TOKENIZER_CHAT_OUTPUT_CALL_GRAMMAR_H_
#define COMMON_TOKENIZER_CHAT_OUTPUT_CALL_GRAMMAR_H_

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/chat/output/output_format.h"

namespace baton::chat {

struct CallableTool {
  std::string name;
  std::string schema;  // The JSON schema of its arguments; empty: they may be any.
  std::set<std::string> text_parameters;  // OfferedTool's.
};

struct CallDemand {
  bool forced = true;     // The answer is calls, at least one. Else text may stand around them.
  bool parallel = false;  // There may be several.
};

// In the notation of common/grammar/ebnf.h. UNIMPLEMENTED for kNone, and for a format that has no
// mark of a call where text may stand around them. What it allows OutputParser reads as calls of
// these tools.
absl::StatusOr<std::string> CallGrammar(ToolFormat format, const std::vector<CallableTool>& tools,
                                        CallDemand demand);

}  // namespace baton::chat

#endif  // COMMON_TOKENIZER_CHAT_OUTPUT_CALL_GRAMMAR_H_
