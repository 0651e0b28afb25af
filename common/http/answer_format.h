// Answers as bytes: status line, header, body, chunks and server-sent events. No socket.
#ifndef COMMON_HTTP_ANSWER_FORMAT_H_
#define COMMON_HTTP_ANSWER_FORMAT_H_

#include <string>
#include <string_view>

#include "common/http/http_handler.h"

namespace baton {

// How one request wants to be answered.
struct AnswerForm {
  bool http_1_1 = true;     // Chunks; without them a stream ends with the connection.
  bool head = false;        // The header alone, with the length that the body would have.
  bool keep_alive = false;  // Another request may follow.
  std::string request_id;   // Echoed; empty: none.
  HttpHeaders headers;      // Sent with every answer, such as CORS headers.
};

std::string FormatAnswer(const AnswerForm& form, const HttpResponse& response);

// The beginning of a stream of server-sent events.
std::string FormatEventsHead(const AnswerForm& form);
std::string FormatEvent(const AnswerForm& form, const HttpEvent& event);
// A comment, which clients skip: a sign of life that makes a closed peer show itself.
std::string FormatEventComment(const AnswerForm& form);
std::string FormatEventsEnd(const AnswerForm& form);

// "100 Continue": asks for the body, and means nothing to a client that has sent it.
inline constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

}  // namespace baton

#endif  // COMMON_HTTP_ANSWER_FORMAT_H_
