#include "common/tokenizer/chat/chat_template.h"

#include <array>
#include <utility>

#include "common/base/status.h"
#include "common/base/strings.h"
#include "common/tokenizer/words/unicode.h"
#include "common/tokenizer/words/utf8.h"

namespace baton {
namespace {

constexpr std::string_view kImStart = "<|im_start|>";
constexpr std::string_view kImEnd = "<|im_end|>";
constexpr std::string_view kBeginOfText = "<|begin_of_text|>";
constexpr std::string_view kStartHeader = "<|start_header_id|>";
constexpr std::string_view kEndHeader = "<|end_header_id|>";
constexpr std::string_view kEndOfTurn = "<|eot_id|>";

class SegmentWriter {
 public:
  void Special(std::string_view token) { segments_.push_back({true, std::string(token)}); }

  // Joins neighbours: a word may span the border of template and message.
  void Text(std::string_view text) {
    if (segments_.empty() || segments_.back().is_special_token) segments_.push_back({false, ""});
    segments_.back().text.append(text);
  }

  std::vector<ChatSegment> Take() { return std::move(segments_); }

 private:
  std::vector<ChatSegment> segments_;
};

absl::Status CheckMessages(std::span<const ChatMessage> messages) {
  if (messages.empty()) return InvalidField("messages", "there must be at least one message");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
      return InvalidField(Concat("messages[", i, "].role"),
                          "must be \"system\", \"user\", \"assistant\" or \"tool\"");
    }
    if (const std::optional<size_t> offset = FirstInvalidUtf8(messages[i].content)) {
      return InvalidField(Concat("messages[", i, "].content"),
                          Concat("is not UTF-8 at byte ", *offset));
    }
  }
  return absl::OkStatus();
}

// <|im_start|>user\nHello<|im_end|>\n. The results of tools are told by the user, between tags, all
// that follow each other in one turn, as Qwen does it.
class ChatMl : public ChatTemplate {
 public:
  static constexpr std::array kTokens = {kImStart, kImEnd};

  std::string_view name() const override { return "chatml"; }

  absl::StatusOr<std::vector<ChatSegment>> Render(std::span<const ChatMessage> messages,
                                                  bool add_generation_prompt) const override {
    BATON_RETURN_IF_ERROR(CheckMessages(messages));
    SegmentWriter out;
    for (size_t i = 0; i < messages.size(); ++i) {
      const auto is_tool = [&](size_t at) {
        return at < messages.size() && messages[at].role == "tool";
      };
      if (!is_tool(i)) {
        Open(messages[i].role, &out);
        out.Text(messages[i].content);
        Close(&out);
        continue;
      }
      if (i == 0 || !is_tool(i - 1)) Open("user", &out);
      out.Text(Concat("<tool_response>\n", messages[i].content, "\n</tool_response>"));
      is_tool(i + 1) ? out.Text("\n") : Close(&out);
    }
    if (add_generation_prompt) Open("assistant", &out);
    return out.Take();
  }

 private:
  static void Open(std::string_view role, SegmentWriter* out) {
    out->Special(kImStart);
    out->Text(Concat(role, "\n"));
  }

  static void Close(SegmentWriter* out) {
    out->Special(kImEnd);
    out->Text("\n");
  }
};

// <|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>, with white space
// around the content dropped. Tools speak as "ipython".
class Llama3 : public ChatTemplate {
 public:
  static constexpr std::array kTokens = {kBeginOfText, kStartHeader, kEndHeader, kEndOfTurn};

  std::string_view name() const override { return "llama3"; }

  absl::StatusOr<std::vector<ChatSegment>> Render(std::span<const ChatMessage> messages,
                                                  bool add_generation_prompt) const override {
    BATON_RETURN_IF_ERROR(CheckMessages(messages));
    SegmentWriter out;
    out.Special(kBeginOfText);
    for (const ChatMessage& message : messages) {
      Open(message.role == "tool" ? "ipython" : message.role, &out);
      out.Text(StripLikePython(message.content));
      out.Special(kEndOfTurn);
    }
    if (add_generation_prompt) Open("assistant", &out);
    return out.Take();
  }

 private:
  static void Open(std::string_view role, SegmentWriter* out) {
    out->Special(kStartHeader);
    out->Text(role);
    out->Special(kEndHeader);
    out->Text("\n\n");
  }
};

class UnknownTemplate : public ChatTemplate {
 public:
  std::string_view name() const override { return "unknown"; }

  absl::StatusOr<std::vector<ChatSegment>> Render(std::span<const ChatMessage>,
                                                  bool) const override {
    return absl::FailedPreconditionError(
        "the model's chat template is not recognised; start the server with "
        "--chat-template=chatml or --chat-template=llama3");
  }
};

// The first of the template's special tokens that `tokenizer` lacks; empty if it has all.
template <typename Template>
std::string_view MissingToken(const Tokenizer& tokenizer) {
  for (const std::string_view token : Template::kTokens) {
    const std::optional<int32_t> id = tokenizer.TokenId(token);
    if (!id.has_value() || !tokenizer.IsSpecial(*id)) return token;
  }
  return {};
}

template <typename Template>
absl::StatusOr<std::unique_ptr<ChatTemplate>> Make(const Tokenizer& tokenizer) {
  auto chosen = std::make_unique<Template>();
  if (const std::string_view missing = MissingToken<Template>(tokenizer); !missing.empty()) {
    return absl::InvalidArgumentError(Concat("--chat-template=", chosen->name(),
                                             ": the tokenizer has no special token ", missing));
  }
  return std::unique_ptr<ChatTemplate>(std::move(chosen));
}

template <typename Template>
bool Recognised(const Tokenizer& tokenizer) {
  const std::string& jinja = tokenizer.chat_template();
  if (!MissingToken<Template>(tokenizer).empty()) return false;
  // The token that opens a turn is in every template of the format; the last of Llama-3's kTokens
  // isn't, since some models write it through a variable.
  constexpr std::string_view kOpening = std::is_same_v<Template, ChatMl> ? kImStart : kStartHeader;
  return jinja.empty() || jinja.find(kOpening) != std::string::npos;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChatTemplate>> MakeChatTemplate(std::string_view choice,
                                                               const Tokenizer& tokenizer) {
  if (choice == "chatml") return Make<ChatMl>(tokenizer);
  if (choice == "llama3") return Make<Llama3>(tokenizer);
  if (choice != "auto") {
    return absl::InvalidArgumentError(
        Concat("--chat-template=", choice, ": must be auto, chatml or llama3"));
  }
  if (Recognised<ChatMl>(tokenizer)) return Make<ChatMl>(tokenizer);
  if (Recognised<Llama3>(tokenizer)) return Make<Llama3>(tokenizer);
  return std::unique_ptr<ChatTemplate>(std::make_unique<UnknownTemplate>());
}

absl::StatusOr<std::vector<int32_t>> EncodeChat(const Tokenizer& tokenizer,
                                                const ChatTemplate& chat_template,
                                                std::span<const ChatMessage> messages,
                                                bool add_generation_prompt) {
  BATON_ASSIGN_OR_RETURN(const std::vector<ChatSegment> segments,
                         chat_template.Render(messages, add_generation_prompt));
  std::vector<int32_t> ids;
  for (const ChatSegment& segment : segments) {
    if (segment.is_special_token) {
      const std::optional<int32_t> id = tokenizer.TokenId(segment.text);
      if (!id.has_value()) {
        return absl::FailedPreconditionError(
            Concat("the tokenizer has no special token ", segment.text));
      }
      ids.push_back(*id);
      continue;
    }
    BATON_ASSIGN_OR_RETURN(const std::vector<int32_t> text_ids,
                           tokenizer.Encode(segment.text, /*add_special_tokens=*/false,
                                            /*parse_special=*/false));
    ids.insert(ids.end(), text_ids.begin(), text_ids.end());
  }
  return ids;
}

}  // namespace baton
