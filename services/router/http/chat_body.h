// The body of a chat, as the fronts of other protocols put it together: what they take is said in
// the fields of /v1/chat/completions and read by its parser, so that every front has its checks.
// Errors come back in the words of the front's own fields.
#ifndef SERVICES_ROUTER_HTTP_CHAT_BODY_H_
#define SERVICES_ROUTER_HTTP_CHAT_BODY_H_

#include <cstddef>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tokenizer/chat/jinja/value.h"
#include "services/router/http/json_input.h"
#include "services/router/http/openai_request.h"
#include "services/router/http/request_fields.h"

namespace baton::router {

// What a chat's fields are called in the client's protocol.
class FieldRenames {
 public:
  // `chat` and everything below it ("messages[3]" and "messages[3].content").
  void Add(std::string chat, std::string client) { names_[std::move(chat)] = std::move(client); }
  // An error that names a chat's field names the client's: the longest beginning that is known.
  absl::Status Apply(const absl::Status& status) const;

 private:
  std::map<std::string, std::string> names_;
};

// A client's JSON value as it was written, keys in their order: from a dict of
// jinja::ParseJsonValue. Chat templates show the model schemas and arguments so.
absl::StatusOr<std::string> JsonAsWritten(const jinja::Value& value);

// A field that has to be there.
absl::StatusOr<std::string> RequiredString(const Fields& fields, const std::string& name);

class ChatBody {
 public:
  // A new message; `path` is what the client calls what it comes from.
  void Begin(std::string role, std::string path);
  // The same, unless the last message is of this role and may have more.
  void GoOn(const std::string& role, const std::string& path);
  // To the last message, of which there is one:
  void Say(std::string text) { messages_.back().texts.push_back(std::move(text)); }
  void Reason(std::string text) { messages_.back().reasoning.push_back(std::move(text)); }
  void Call(std::string id, std::string name, std::string arguments);
  // A message of its own.
  void Result(std::string call_id, std::string text, std::string path);

  // A function as the client describes it: its name, its description and the text of its schema,
  // null and empty for what it has not.
  void Offer(Json function, const std::string& schema, const std::string& path,
             const std::string& schema_name);

  // `client`: what the client calls the field.
  void Set(const std::string& name, const Json& value, const std::string& client);
  // The answer's schema. `named`: the text of an object with name, schema and strict.
  void SetSchema(const std::string& named, const std::string& client);
  // Fields that mean the same in both protocols, where the client gives them.
  void Copy(const Fields& fields, const std::vector<std::string>& names);

  bool empty() const { return messages_.empty(); }
  FieldRenames& renames() { return renames_; }

  // Reads it as a chat's body. `warnings` stand before the parser's own.
  absl::StatusOr<OpenAiRequest> Parse(Endpoint endpoint, UnknownFields unknown,
                                      std::string_view timeout,
                                      std::vector<std::string> warnings) const;

 private:
  struct Message {
    std::string role;
    std::vector<std::string> texts;
    std::vector<std::string> reasoning;
    std::vector<std::string> calls;  // JSON.
    std::string call_id;             // A result's.
  };
  static std::string MessageText(const Message& message);
  std::string Text() const;

  std::vector<Message> messages_;
  std::vector<std::string> tools_;             // JSON.
  std::map<std::string, std::string> fields_;  // JSON.
  FieldRenames renames_;
};

// A request of another protocol in a chat's terms.
struct FrontRequest {
  OpenAiRequest chat;
  FieldRenames renames;
  Json given;  // The client's body.
};

// How a protocol writes a tool.
struct ToolForm {
  const FieldTable& fields;
  const char* type;         // The only kind that is known: functions of the client's own.
  bool names_type = false;  // It has to; else what says no type is of that kind.
  const char* only;         // Which tools are taken, for messages.
  const char* schema;       // The field of its schema.
  bool needs_schema = false;
};

// Reads the body of one request of another protocol into a chat: what its fronts have in common.
class FrontReader {
 public:
  // `ordered`: the body's members that hold schemas, keys in the client's order. All outlive it.
  FrontReader(const Fields& fields, const jinja::Value& ordered, UnknownFields unknown)
      : fields_(fields), ordered_(ordered.dict()), unknown_(unknown) {}

  // What the body has come to; `given` is the body.
  absl::StatusOr<FrontRequest> Finish(Endpoint endpoint, std::string_view timeout, Json given);

 protected:
  // The object `name`, if it is there, with fields that the table has.
  absl::StatusOr<std::optional<Fields>> Object(const Fields& owner, const char* name,
                                               const FieldTable& table);
  // The field "tools".
  absl::Status ReadTools(const ToolForm& form);

  const Fields& fields_;
  const jinja::Dict& ordered_;
  const UnknownFields unknown_;
  ChatBody chat_;
  std::vector<std::string> warnings_;

 private:
  absl::Status ReadTool(const ToolForm& form, const Json& tool, size_t number);
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_CHAT_BODY_H_
