// The grammar of calls, for answers that must be or may have some.
#ifndef COMMON_TOKENIZER_CHAT_OUTPUT_CALL_GRAMMAR_H_
#define COMMON_TOKENIZER_CHAT_OUTPUT_CALL_GRAMMAR_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/chat/output/output_format.h"

namespace baton::chat {

struct CallableTool {
  std::string name;
  std::string schema;  // Its arguments' schema, JSON.
};

struct CallDemand {
  bool forced = true;     // The answer is calls, at least one. Else text may stand around them.
  bool parallel = false;  // There may be several.
};

// In the notation of common/grammar/ebnf.h. UNIMPLEMENTED for a format whose calls are not JSON, or
// which has no mark of a call where text may stand around them. What it allows OutputParser reads
// as calls of these tools.
absl::StatusOr<std::string> CallGrammar(ToolFormat format, const std::vector<CallableTool>& tools,
                                        CallDemand demand);

}  // namespace baton::chat

#endif  // COMMON_TOKENIZER_CHAT_OUTPUT_CALL_GRAMMAR_H_
