// Answers without a stream: JSON, and errors in OpenAI's form.
#ifndef SERVICES_ROUTER_HTTP_RESPOND_H_
#define SERVICES_ROUTER_HTTP_RESPOND_H_

#include <string>

#include "absl/status/status.h"
#include "common/http/http_handler.h"
#include "services/router/http/json_input.h"

namespace baton::router {

// UTF-8 text of `value`; ill-formed bytes (half a character in a token) become U+FFFD.
std::string Dump(const Json& value);
// As Dump does it, so that the text may be a JSON key as well.
std::string WellFormed(const std::string& bytes);

// {"error": {message, type, param, code}}.
Json ErrorBody(const absl::Status& status);
int HttpStatusOf(const absl::Status& status);
// The same form for what the server itself refuses.
HttpResponse OpenAiError(int status, const std::string& message);

void RespondJson(HttpExchange& exchange, const Json& body);
void RespondText(HttpExchange& exchange, std::string content_type, std::string body);
HttpResponse ErrorResponse(const absl::Status& status);
void RespondError(HttpExchange& exchange, const absl::Status& status);

// Ends a stream with an error before its first token: with a status of its own while the head is
// held back, else as an event, behind which the stream ends as every other does.
void FailStream(HttpExchange& exchange, const absl::Status& status);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_RESPOND_H_
