// Conversations to token ids. Models' own templates are Jinja programs; the two formats in use by
// the supported families are coded here instead, so that no model file brings code along. What
// single models' templates add of their own is left out: a system prompt that nobody wrote (Qwen2),
// today's date (Llama-3.1), definitions of tools.
#ifndef COMMON_TOKENIZER_CHAT_CHAT_TEMPLATE_H_
#define COMMON_TOKENIZER_CHAT_CHAT_TEMPLATE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer.h"

namespace baton {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant" or "tool"
  std::string content;
};

// A part of a rendered conversation. Text holds what users wrote, and so is never searched for
// special tokens; special tokens come only from the template.
struct ChatSegment {
  bool is_special_token = false;
  std::string text;
};

// Immutable; any thread.
class ChatTemplate {
 public:
  virtual ~ChatTemplate() = default;

  // "chatml", "llama3", or "unknown" for a template that refuses every conversation.
  virtual std::string_view name() const = 0;

  // Writes `messages` down, with the beginning of the assistant's answer if
  // `add_generation_prompt`. Segments of text never stand side by side. InvalidField
  // ("messages[1].role") for messages that can't be rendered; FailedPrecondition if the model's
  // template is unknown.
  virtual absl::StatusOr<std::vector<ChatSegment>> Render(std::span<const ChatMessage> messages,
                                                          bool add_generation_prompt) const = 0;
};

// The template for --chat-template=`choice`: "chatml", "llama3", or "auto", which recognises one of
// them by the model's own template, or by its special tokens if it has none. What "auto" doesn't
// recognise is an error only once there is a conversation, since such a model still completes text.
// InvalidArgument for another choice, or for one whose special tokens `tokenizer` lacks.
absl::StatusOr<std::unique_ptr<ChatTemplate>> MakeChatTemplate(std::string_view choice,
                                                               const Tokenizer& tokenizer);

// The ids of a conversation. Errors as Render and Tokenizer::Encode.
absl::StatusOr<std::vector<int32_t>> EncodeChat(const Tokenizer& tokenizer,
                                                const ChatTemplate& chat_template,
                                                std::span<const ChatMessage> messages,
                                                bool add_generation_prompt);

}  // namespace baton

#endif  // COMMON_TOKENIZER_CHAT_CHAT_TEMPLATE_H_
