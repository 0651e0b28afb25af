#include "common/http/answer_format.h"

#include <boost/beast/http/status.hpp>
#include <ctime>

#include "absl/strings/str_cat.h"
#include "common/base/strings.h"

namespace baton {
namespace {

namespace http = boost::beast::http;

std::string_view Reason(int status) {
  if (status == 499) return "Client Closed Request";  // nginx's; no RFC has it.
  if (status == 529) return "Overloaded";             // Anthropic's.
  const auto reason = http::obsolete_reason(http::int_to_status(static_cast<unsigned>(status)));
  return {reason.data(), reason.size()};
}

// IMF-fixdate of RFC 9110. The process never leaves the locale "C", so the names are English.
std::string Date() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[40];
  return {text, std::strftime(text, sizeof(text), "%a, %d %b %Y %H:%M:%S GMT", &utc)};
}

// A line break in a value would begin a header of its own.
void AppendHeader(std::string& head, std::string_view name, std::string_view value) {
  head += name;
  head += ": ";
  for (const char c : value) head += c == '\r' || c == '\n' ? ' ' : c;
  head += "\r\n";
}

std::string StartHead(const AnswerForm& form, int status) {
  std::string head = Concat("HTTP/1.1 ", status, " ", Reason(status), "\r\n");
  AppendHeader(head, "Date", Date());
  if (!form.request_id.empty()) AppendHeader(head, "X-Request-Id", form.request_id);
  for (const auto& [name, value] : form.headers) AppendHeader(head, name, value);
  if (!form.keep_alive) {
    AppendHeader(head, "Connection", "close");
  } else if (!form.http_1_1) {
    AppendHeader(head, "Connection", "keep-alive");
  }
  return head;
}

std::string Frame(const AnswerForm& form, std::string_view text) {
  if (!form.http_1_1) return std::string(text);
  return Concat(absl::Hex(text.size()), "\r\n", text, "\r\n");
}

}  // namespace

std::string FormatAnswer(const AnswerForm& form, const HttpResponse& response) {
  std::string bytes = StartHead(form, response.status);
  for (const auto& [name, value] : response.headers) AppendHeader(bytes, name, value);
  if (!response.content_type.empty()) AppendHeader(bytes, "Content-Type", response.content_type);
  const bool bodiless = response.status == 204 || response.status == 304;
  if (!bodiless) AppendHeader(bytes, "Content-Length", absl::StrCat(response.body.size()));
  bytes += "\r\n";
  if (!bodiless && !form.head) bytes += response.body;
  return bytes;
}

std::string FormatEventsHead(const AnswerForm& form) {
  std::string head = StartHead(form, 200);
  AppendHeader(head, "Content-Type", "text/event-stream");
  AppendHeader(head, "Cache-Control", "no-cache");
  AppendHeader(head, "X-Accel-Buffering", "no");  // nginx would keep events until it has a buffer.
  if (form.http_1_1) AppendHeader(head, "Transfer-Encoding", "chunked");
  return head + "\r\n";
}

std::string FormatEvent(const AnswerForm& form, const HttpEvent& event) {
  if (event.name.empty()) return Frame(form, Concat("data: ", event.data, "\n\n"));
  return Frame(form, Concat("event: ", event.name, "\ndata: ", event.data, "\n\n"));
}

std::string FormatEventComment(const AnswerForm& form) { return Frame(form, ":\n\n"); }

std::string FormatEventsEnd(const AnswerForm& form) { return form.http_1_1 ? "0\r\n\r\n" : ""; }

}  // namespace baton
