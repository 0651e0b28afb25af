// Conversations to token ids, as the model's own chat template writes them (jinja/).
#ifndef COMMON_TOKENIZER_CHAT_CHAT_TEMPLATE_H_
#define COMMON_TOKENIZER_CHAT_CHAT_TEMPLATE_H_

#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/chat/jinja/template.h"
#include "common/tokenizer/tokenizer.h"

namespace baton {

struct ChatMessage {
  std::string role;
  std::string content;  // Text parts are joined by line ends.
  // The whole message as the client wrote it, a dict whose strings are marked as a client's;
  // undefined if there is no more to it than `role` and `content`.
  jinja::Value fields;
};

struct ChatPrompt {
  std::vector<ChatMessage> messages;
  bool add_generation_prompt = true;  // The beginning of the assistant's answer, after the last.
  // The answer goes on with the last message: the text ends where its content does.
  bool continue_final_message = false;
  jinja::Value tools;      // What the template's variable `tools` is; undefined: None.
  jinja::Value variables;  // A dict of more variables; undefined: none.
};

// Immutable; any thread.
class ChatTemplate {
 public:
  // A template that refuses every conversation.
  ChatTemplate() = default;
  // `tool_use` takes the place of `plain` where a prompt has tools.
  ChatTemplate(std::string source, std::string jinja_text, jinja::Template plain,
               std::optional<jinja::Template> tool_use, jinja::Dict tokens);

  // Where it is from: a file of the model, "chatml", "llama3", or "unknown" for one that refuses
  // every conversation.
  std::string_view name() const { return source_; }
  // Its own text, of both if there are two.
  std::string_view text() const { return text_; }
  // Whether it writes tools anywhere.
  bool takes_tools() const { return text_.find("tools") != std::string::npos; }

  // The text of a conversation, in which what the client wrote is marked. `now` is what the
  // template calls the time. InvalidField ("messages") for no messages or ill-formed UTF-8,
  // and ("tools") for tools that it doesn't take;
  // InvalidArgument for what the template refuses or can't do with them; FailedPrecondition if
  // there is no template.
  absl::StatusOr<jinja::Text> Render(const ChatPrompt& prompt, const std::tm& now) const;

 private:
  // Arguments of calls that came as text: as the values that most templates write, or as they are.
  enum class Arguments { kValues, kText };
  absl::StatusOr<jinja::Text> Render(const ChatPrompt& prompt, const std::tm& now,
                                     Arguments arguments) const;
  absl::StatusOr<jinja::Value> MessageValue(const ChatMessage& message, Arguments arguments) const;
  jinja::Value Role(const std::string& role) const;
  absl::StatusOr<jinja::Value> Content(const ChatMessage& message) const;

  std::string source_ = "unknown";
  std::string text_;
  std::optional<jinja::Template> plain_;
  std::optional<jinja::Template> tool_use_;
  jinja::Dict tokens_;            // Variables: bos_token and the like.
  bool knows_developer_ = false;  // It speaks of that role.
  bool wants_parts_ = false;      // It visits a message's content part by part,
  bool wants_text_ = true;        // or takes it as a string.
};

// The template for --chat-template=`choice`: "auto", the name of one of the model's templates,
// "chatml" or "llama3", or a file's path (with a / or the ending .jinja). "auto" is the model's
// default template; for a model without one it is chatml or llama3, by its special tokens, or else
// one that refuses conversations, since such a model still completes text.
// InvalidArgument for another choice, for a source that is no template (with the line), and for a
// built-in one whose special tokens `tokenizer` lacks; NotFound for a file that isn't there.
absl::StatusOr<std::unique_ptr<ChatTemplate>> MakeChatTemplate(std::string_view choice,
                                                               const Tokenizer& tokenizer);

// The ids of a conversation. Special tokens come from the template alone, the one at the beginning
// too; what a client wrote is never one. Errors as Render and Tokenizer::EncodeMarked.
absl::StatusOr<std::vector<int32_t>> EncodeChat(const Tokenizer& tokenizer,
                                                const ChatTemplate& chat_template,
                                                const ChatPrompt& prompt, const std::tm& now);

}  // namespace baton

#endif  // COMMON_TOKENIZER_CHAT_CHAT_TEMPLATE_H_
