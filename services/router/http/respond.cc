#include "services/router/http/respond.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "services/router/core/context_overflow.h"
#include "services/router/core/rate_limits.h"

namespace baton::router {

std::string Dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string WellFormed(const std::string& bytes) {
  return Json::parse(Dump(Json(bytes))).get<std::string>();
}

int HttpStatusOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kCancelled:
      return 499;
    case absl::StatusCode::kUnimplemented:
      return 501;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

Json ErrorBody(const absl::Status& status) {
  const int http = HttpStatusOf(status);
  const char* type = http == 401   ? "authentication_error"
                     : http == 429 ? "rate_limit_error"
                     : http < 499  ? "invalid_request_error"
                                   : "server_error";
  Json code = nullptr;
  if (absl::IsNotFound(status) && FieldOf(status) == "model") code = "model_not_found";
  if (absl::IsUnauthenticated(status)) code = "invalid_api_key";
  if (IsContextOverflow(status)) code = "context_length_exceeded";
  if (IsEndedByDrain(status)) code = "draining";
  if (IsOverloaded(status)) code = "overloaded";
  if (IsRateLimited(status)) code = "rate_limit_exceeded";
  const auto field = FieldOf(status);
  return {{"error",
           {{"message", std::string(status.message())},
            {"type", type},
            {"param", field.has_value() ? Json(*field) : Json()},
            {"code", code}}}};
}

HttpResponse OpenAiError(int status, const std::string& message) {
  const char* type = status < 499 ? "invalid_request_error" : "server_error";
  HttpResponse response;
  response.status = status;
  // Paths are not known here: "type" is for Anthropic's clients.
  response.body = Dump(
      {{"type", "error"},
       {"error", {{"message", message}, {"type", type}, {"param", nullptr}, {"code", nullptr}}}});
  return response;
}

void RespondJson(HttpExchange& exchange, const Json& body) {
  HttpResponse response;
  response.body = Dump(body);
  exchange.Respond(std::move(response));
}

void RespondText(HttpExchange& exchange, std::string content_type, std::string body) {
  HttpResponse response;
  response.content_type = std::move(content_type);
  response.body = std::move(body);
  exchange.Respond(std::move(response));
}

HttpResponse ErrorResponse(const absl::Status& status) {
  HttpResponse response;
  response.status = HttpStatusOf(status);
  response.body = Dump(ErrorBody(status));
  if (response.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  // Other 429s get no Retry-After: a request that fits nowhere will not fit later.
  if (response.status == 503 || IsOverloaded(status)) {
    const int64_t seconds = (RetryHintMsOf(status) + 999) / 1000;
    response.headers.emplace_back("Retry-After", absl::StrCat(std::max<int64_t>(1, seconds)));
  }
  return response;
}

void RespondError(HttpExchange& exchange, const absl::Status& status) {
  exchange.Respond(ErrorResponse(status));
}

void FailStream(HttpExchange& exchange, const absl::Status& status) {
  exchange.RespondOrEnd(ErrorResponse(status), {Dump(ErrorBody(status)), "[DONE]"});
}

}  // namespace baton::router
