// An answer as a row of blocks (reasoning, text, calls of tools) in the order in which the model
// wrote them: what the protocols have in common whose answers are no choices.
#ifndef SERVICES_ROUTER_HTTP_BLOCK_ANSWER_H_
#define SERVICES_ROUTER_HTTP_BLOCK_ANSWER_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "services/router/gateway.h"
#include "services/router/http/answer_group.h"
#include "services/router/http/chat_body.h"
#include "services/router/http/openai_answer.h"

namespace baton::router {

struct AnswerBlock {
  enum class Kind { kReasoning, kText, kCall };
  Kind kind = Kind::kText;
  std::string text;     // A call's arguments, which are a JSON object.
  std::string call_id;  // A call's.
  std::string name;
  std::vector<TokenPiece> tokens;  // A text's, if their log-probabilities are asked for.
};

struct BlockAnswer {
  std::vector<AnswerBlock> blocks;
  FinishReason reason = FinishReason::kStop;  // Never kAbort, which is an error.
  std::string matched_stop;
  bool called = false;  // Some block is a call.
  v1::Usage usage;
  std::vector<std::string> warnings;
};

// How a protocol writes one. A stream is written by all of it, a whole answer by its end.
class BlockForm {
 public:
  virtual ~BlockForm() = default;
  virtual void OnBegin() {}  // Before the first block, or the end.
  virtual void OnBlock(size_t /*index*/, const AnswerBlock& /*block*/) {}  // Without its text.
  // `tokens`: the last ones of the block's.
  virtual void OnText(size_t /*index*/, const std::string& /*added*/,
                      std::span<const TokenPiece> /*tokens*/) {}
  // `complete`: the answer's end did not cut it off.
  virtual void OnBlockEnd(size_t /*index*/, const AnswerBlock& /*block*/, bool /*complete*/) {}
  virtual void OnEnd(const BlockAnswer& answer) = 0;
  // Nothing comes after it. `status` names fields in the protocol's words.
  virtual void OnError(const absl::Status& status) = 0;
};

// `plan` has one call. `gateway` outlives the writer.
std::unique_ptr<AnswerWriter> MakeBlockWriter(Gateway& gateway, AnswerPlan plan,
                                              FieldRenames renames,
                                              std::unique_ptr<BlockForm> form);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_BLOCK_ANSWER_H_
