// What a request says its text must be, in OpenAI's, vLLM's and SGLang's spellings.
#ifndef SERVICES_ROUTER_HTTP_REQUEST_STRUCTURE_H_
#define SERVICES_ROUTER_HTTP_REQUEST_STRUCTURE_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tokenizer/chat/output/call_grammar.h"
#include "common/tokenizer/chat/output/output_format.h"
#include "common/tokenizer/chat/output/tool_call.h"
#include "proto/baton/v1/common.pb.h"
#include "services/router/gateway.h"
#include "services/router/http/json_input.h"

namespace baton::router {

// The names of these fields.
const std::vector<std::string>& StructureNames();

// Fills call.sampling.structure and call.names.structure; two of the fields at once are
// INVALID_ARGUMENT. `object`: the text of `fields`, since a schema's properties keep their order;
// empty: schemas must be strings.
absl::Status ReadStructure(std::string_view object, const Fields& fields, GenerateCall& call);

// What tools ask of an answer's text.
struct CallRules {
  std::vector<chat::CallableTool> tools;  // None: nothing.
  chat::CallDemand demand;
};

// From tools that CheckTools has accepted, and tool_choice: a forced call, or strict functions.
// `body`: the text of `fields`; `offered`: what ReadOfferedTools says of them.
absl::StatusOr<CallRules> ReadCallRules(std::string_view body, const Fields& fields,
                                        const chat::OfferedTools& offered, bool parallel);

// Has `call` keep to the rules, unless it keeps to a response_format and no call is forced.
// INVALID_ARGUMENT if both are asked for, or the model's format cannot be constrained; strict
// functions alone get a warning then.
absl::Status ApplyCallRules(const CallRules& rules, chat::ToolFormat format, GenerateCall& call);

// Lets reasoning stand before what the text must be, or bounds it by `budget` tokens.
void AllowReasoning(chat::ReasoningFormat format, bool in_reasoning, std::optional<int64_t> budget,
                    GenerateCall& call);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_REQUEST_STRUCTURE_H_
