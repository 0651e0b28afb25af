// Which fields the body of a request may have: those that are read, those that change nothing here,
// those that are known and not supported, and what to say of all others.
#ifndef SERVICES_ROUTER_HTTP_REQUEST_FIELDS_H_
#define SERVICES_ROUTER_HTTP_REQUEST_FIELDS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "services/router/http/json_input.h"

namespace baton::router {

// What becomes of a field that no table has: --unknown-fields.
enum class UnknownFields { kRefuse, kIgnore };

// The fields of one kind of JSON object. A field with the value null counts as absent everywhere.
struct FieldTable {
  // Would change the answer; taken only with a value that changes nothing, if there is one.
  struct Unsupported {
    std::string name;
    std::vector<Json> harmless;
    std::string advice;  // What to do instead; may be empty.
  };
  std::string owner;                  // Whose fields: "/v1/completions", "stream_options".
  std::vector<std::string> read;      // Honoured by the parser.
  std::vector<std::string> harmless;  // Cannot change an answer of this server, whatever the value.
  std::vector<Unsupported> unsupported;

  // The same that reads these too.
  FieldTable With(const std::vector<std::string>& more) && {
    read.insert(read.end(), more.begin(), more.end());
    return std::move(*this);
  }
};

const FieldTable& CompletionFields();
const FieldTable& ChatFields();
const FieldTable& MessageFields();
const FieldTable& ToolFields();
const FieldTable& FunctionFields();  // A tool's.
const FieldTable& StreamOptionFields();
const FieldTable& GenerateFields();        // Fields of /generate,
const FieldTable& SamplingParamsFields();  // and of its sampling_params.
const FieldTable& TokenizeFields();
const FieldTable& DetokenizeFields();
const FieldTable& AbortFields();

// INVALID_ARGUMENT, naming the first field that cannot be taken. An ignored unknown field adds a
// line to `warnings`, which come back to the client with the answer.
absl::Status CheckFields(const Fields& fields, const FieldTable& table, UnknownFields unknown,
                         std::vector<std::string>& warnings);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_REQUEST_FIELDS_H_
