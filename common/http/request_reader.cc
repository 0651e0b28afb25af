#include "common/http/request_reader.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/rfc7230.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/strings.h"

namespace baton {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

constexpr uint32_t kMaxHeaderBytes = 16 * 1024;
constexpr size_t kMaxRequestIdBytes = 100;

using Fields = http::header<true, http::fields>;

// What a client may call its request: it stands in logs, headers and ids.
std::string RequestId(std::string_view given) {
  const bool valid = !given.empty() && given.size() <= kMaxRequestIdBytes &&
                     std::all_of(given.begin(), given.end(), [](char c) {
                       return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                              std::string_view("-_.:+/=~@").find(c) != std::string_view::npos;
                     });
  return valid ? std::string(given) : RandomHex(16);
}

std::optional<HttpRefusal> CheckHost(const Fields& fields, bool http_1_1) {
  const size_t count = fields.count(http::field::host);
  if (count == 0 && http_1_1) return HttpRefusal{400, "the Host header is missing"};
  if (count > 1) return HttpRefusal{400, "there is more than one Host header"};
  if (count == 1 && !IsAuthority(std::string(fields[http::field::host]))) {
    return HttpRefusal{400, "the Host header is not a host and port"};
  }
  return std::nullopt;
}

// A length that two parties could read differently lets one client's bytes become another's
// request, so only the one transfer coding that is implemented passes.
std::optional<HttpRefusal> CheckCoding(const Fields& fields, bool http_1_1) {
  if (fields.count(http::field::transfer_encoding) != 0) {
    if (!http_1_1) return HttpRefusal{400, "Transfer-Encoding needs HTTP/1.1"};
    if (!beast::iequals(fields[http::field::transfer_encoding], "chunked")) {
      return HttpRefusal{501, "the only Transfer-Encoding is chunked"};
    }
  }
  const auto encoding = fields[http::field::content_encoding];
  if (!encoding.empty() && !beast::iequals(encoding, "identity")) {
    return HttpRefusal{415, "bodies must come without a Content-Encoding"};
  }
  return std::nullopt;
}

std::optional<HttpRefusal> CheckExpect(const Fields& fields, bool http_1_1) {
  if (!http_1_1 || fields.count(http::field::expect) == 0) return std::nullopt;
  if (beast::iequals(fields[http::field::expect], "100-continue")) return std::nullopt;
  return HttpRefusal{417, "the only Expect is 100-continue"};
}

}  // namespace

void RequestReader::Append(std::string_view bytes) {
  const auto room = buffer_.prepare(bytes.size());
  buffer_.commit(asio::buffer_copy(room, asio::buffer(bytes.data(), bytes.size())));
}

void RequestReader::DropBuffered() {
  buffer_.consume(buffer_.size());
  buffer_.shrink_to_fit();
}

RequestReader::Event RequestReader::Refuse(int status, std::string message) {
  refused_ = true;
  refusal_ = {status, std::move(message)};
  return Event::kRefused;
}

RequestReader::Event RequestReader::RefuseMalformed(const boost::system::error_code& error) {
  if (error == http::error::body_limit) {
    return Refuse(413, absl::StrCat("the body is larger than ", max_body_bytes_,
                                    " bytes (--max-request-bytes)"));
  }
  if (error == http::error::header_limit) {
    return Refuse(431, absl::StrCat("the header is larger than ", kMaxHeaderBytes, " bytes"));
  }
  if (error == http::error::bad_version) {
    return Refuse(505, "the only versions are HTTP/1.1 and HTTP/1.0");
  }
  return Refuse(400, absl::StrCat("the request is not well-formed HTTP/1.1: ", error.message()));
}

RequestReader::Event RequestReader::Read() {
  if (refused_) return Event::kRefused;
  return header_done_ ? ReadBody() : ReadHeader();
}

// Some clients end a body with a line that its length does not count (RFC 9112, 2.2).
void RequestReader::SkipEmptyLines() {
  while (buffer_.size() >= 2) {
    const auto* const bytes = static_cast<const char*>(buffer_.data().data());
    if (bytes[0] != '\r' || bytes[1] != '\n') return;
    buffer_.consume(2);
  }
}

bool RequestReader::IsHalfLine() const {
  return buffer_.size() == 1 && *static_cast<const char*>(buffer_.data().data()) == '\r';
}

RequestReader::Event RequestReader::ReadHeader() {
  if (!parser_.has_value()) {
    SkipEmptyLines();
    if (buffer_.size() == 0 || IsHalfLine()) return Event::kNeedMore;
    parser_.emplace();
    header_ = {};
    request_ = {};
    parser_->header_limit(kMaxHeaderBytes);
    parser_->body_limit(max_body_bytes_);
  }
  boost::system::error_code error;
  while (!error && !parser_->is_header_done()) {
    buffer_.consume(parser_->put(buffer_.data(), error));
  }
  if (error == http::error::need_more) {
    return buffer_.size() <= kMaxHeaderBytes ? Event::kNeedMore
                                             : RefuseMalformed(http::error::header_limit);
  }
  if (error) return RefuseMalformed(error);
  if (!ReadFields()) return Event::kRefused;
  header_done_ = true;
  return Event::kHeader;
}

bool RequestReader::ReadFields() {
  const auto& message = parser_->get();
  header_.http_1_1 = message.version() >= 11;
  header_.keep_alive = message.keep_alive();
  header_.head = message.method() == http::verb::head;
  header_.expects_continue = header_.http_1_1 && message.count(http::field::expect) != 0;
  if (message.method() == http::verb::unknown || message.method() == http::verb::connect) {
    Refuse(501, absl::StrCat("the method ", std::string(message.method_string()),
                             " is not implemented"));
    return false;
  }
  for (const auto& check :
       {CheckHost(message, header_.http_1_1), CheckCoding(message, header_.http_1_1),
        CheckExpect(message, header_.http_1_1)}) {
    if (!check.has_value()) continue;
    Refuse(check->status, check->message);
    return false;
  }
  request_.method = header_.head ? "GET" : std::string(message.method_string());
  const std::optional<RequestTarget> target =
      ParseRequestTarget(std::string(message.target()), request_.method);
  if (!target.has_value()) {
    Refuse(400, "the request target is neither a path nor a URL");
    return false;
  }
  request_.path = target->path;
  request_.query = target->query;
  for (const auto& field : message) {
    request_.headers.emplace_back(field.name_string(), field.value());
  }
  request_.request_id = RequestId(request_.Header("X-Request-Id"));
  return true;
}

RequestReader::Event RequestReader::ReadBody() {
  parser_->eager(true);
  boost::system::error_code error;
  while (!error && !parser_->is_done()) {
    const size_t taken = parser_->put(buffer_.data(), error);
    buffer_.consume(taken);
    if (taken == 0 && !error && buffer_.size() == 0) break;
  }
  if (error == http::error::need_more) return Event::kNeedMore;
  if (error) return RefuseMalformed(error);
  return parser_->is_done() ? Event::kRequest : Event::kNeedMore;
}

HttpRequest RequestReader::Take() {
  HttpRequest request = std::exchange(request_, {});
  request.body = std::move(parser_->get().body());
  parser_.reset();
  header_done_ = false;
  // Between requests an idle client holds nothing but what it sent early.
  if (buffer_.size() == 0) buffer_.shrink_to_fit();
  return request;
}

namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::optional<std::string> PercentDecode(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded.push_back(text[i]);
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = HexDigit(text[i + 1]);
    const int low = HexDigit(text[i + 2]);
    if (high < 0 || low < 0 || (high == 0 && low == 0)) return std::nullopt;
    decoded.push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return decoded;
}

}  // namespace

bool IsAuthority(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           std::string_view("-._~!$&'()*+,;=:[]%").find(c) != std::string_view::npos;
  });
}

std::optional<RequestTarget> ParseRequestTarget(std::string_view target, std::string_view method) {
  if (target == "*") {
    if (method != "OPTIONS") return std::nullopt;
    return RequestTarget{"*", ""};
  }
  if (target.find('#') != std::string_view::npos) return std::nullopt;
  bool absolute = false;
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!absl::StartsWithIgnoreCase(ToAbsl(target), ToAbsl(scheme))) continue;
    target.remove_prefix(scheme.size());
    const size_t end = std::min(target.find_first_of("/?"), target.size());
    if (end == 0 || !IsAuthority(target.substr(0, end))) return std::nullopt;
    target.remove_prefix(end);
    absolute = true;
    break;
  }
  const size_t mark = std::min(target.find('?'), target.size());
  std::string_view path = target.substr(0, mark);
  if (path.empty() && absolute) path = "/";
  if (!path.starts_with('/')) return std::nullopt;
  std::optional<std::string> decoded = PercentDecode(path);
  if (!decoded.has_value()) return std::nullopt;
  RequestTarget parsed{*std::move(decoded), ""};
  if (mark < target.size()) parsed.query = std::string(target.substr(mark + 1));
  return parsed;
}

}  // namespace baton
