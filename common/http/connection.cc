#include "common/http/connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/rfc7230.hpp>
#include <boost/beast/http/write.hpp>
#include <cerrno>
#include <chrono>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/random.h"

namespace baton {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

constexpr size_t kHeaderLimitBytes = size_t{16} * 1024;
// A client that lets this much pile up does not read; it is cut off rather than fed from memory.
constexpr size_t kQueueLimitBytes = size_t{4} << 20;

constexpr char kRequestIdHeader[] = "X-Request-Id";
constexpr size_t kMaxRequestIdBytes = 100;

// What a client may call its request: it stands in logs, headers and ids.
std::string RequestId(const HttpRequest& request) {
  const std::string_view given = request.Header(kRequestIdHeader);
  const bool valid = !given.empty() && given.size() <= kMaxRequestIdBytes &&
                     std::all_of(given.begin(), given.end(), [](char c) {
                       return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                              std::string_view("-_.:+/=~@").find(c) != std::string_view::npos;
                     });
  return valid ? std::string(given) : RandomHex(16);
}

// The messages are this file's own: nothing in them needs escaping.
HttpResponse Error(int status, const std::string& message) {
  HttpResponse response;
  response.status = status;
  response.body = absl::StrCat(R"({"error":{"message":")", message,
                               R"(","type":"invalid_request_error","param":null,"code":null}})");
  return response;
}

}  // namespace

Connection::Connection(asio::ip::tcp::socket socket, const HttpServerOptions& options,
                       const HttpHandler& handler, std::function<void()> on_close)
    : stream_(std::move(socket)),
      options_(options),
      handler_(handler),
      on_close_(std::move(on_close)) {
  // Tokens are small and must leave at once.
  ErrorCode ignored;
  stream_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
}

Connection::~Connection() { on_close_(); }

void Connection::OnStrand(std::function<void()> run) {
  asio::dispatch(stream_.get_executor(),
                 [self = shared_from_this(), run = std::move(run)] { run(); });
}

void Connection::Run() {
  OnStrand([this] { ReadHeader(); });
}

void Connection::Refuse(HttpResponse reply) {
  OnStrand([this, reply = std::move(reply)]() mutable {
    busy_ = true;
    keep_alive_ = false;
    request_id_ = RandomHex(16);
    Respond(std::move(reply));
  });
}

// ---- Reading ----

void Connection::ReadHeader() {
  parser_.emplace();
  parser_->body_limit(options_.max_request_bytes);
  parser_->header_limit(kHeaderLimitBytes);
  stream_.expires_after(std::chrono::seconds(options_.idle_timeout_s));
  http::async_read_header(stream_, buffer_, *parser_,
                          [self = shared_from_this()](ErrorCode error, size_t) {
                            if (error) return self->OnReadError(error);
                            self->ReadBody();
                          });
}

void Connection::ReadBody() {
  const auto read = [self = shared_from_this()] {
    http::async_read(self->stream_, self->buffer_, *self->parser_,
                     [self](ErrorCode error, size_t) { self->OnRequest(error); });
  };
  if (!beast::iequals(parser_->get()[http::field::expect], "100-continue")) return read();
  // curl waits for this before it sends a long prompt.
  static constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(stream_, asio::buffer(kContinue, sizeof(kContinue) - 1),
                    [self = shared_from_this(), read](ErrorCode error, size_t) {
                      if (error) return self->Close();
                      read();
                    });
}

void Connection::OnReadError(ErrorCode error) {
  if (error == http::error::body_limit) {
    return Refuse(Error(413, absl::StrCat("the body is larger than ", options_.max_request_bytes,
                                          " bytes (--max-request-bytes)")));
  }
  if (error == http::error::header_limit) {
    return Refuse(
        Error(431, absl::StrCat("the header is larger than ", kHeaderLimitBytes, " bytes")));
  }
  const bool malformed = error.category() == make_error_code(http::error::bad_method).category();
  if (malformed && error != http::error::end_of_stream && error != http::error::partial_message) {
    return Refuse(Error(400, "the request is not well-formed HTTP/1.1"));
  }
  Close();  // The client left, or said nothing for too long.
}

void Connection::OnRequest(ErrorCode error) {
  if (error) return OnReadError(error);
  auto message = parser_->release();
  stream_.expires_never();
  busy_ = true;
  answer_ended_ = false;
  keep_alive_ = message.keep_alive();
  chunked_ = message.version() >= 11;
  ++exchange_;
  on_gone_ = nullptr;
  HttpRequest request;
  request.method = std::string(message.method_string());
  const std::string target(message.target());
  const size_t end = target.find('?');
  request.path = target.substr(0, end);
  if (end != std::string::npos) request.query = target.substr(end + 1);
  for (const auto& field : message) {
    request.headers.emplace_back(field.name_string(), field.value());
  }
  request_id_ = RequestId(request);
  request.request_id = request_id_;
  request.body = std::move(message.body());
  WatchForDisconnect();
  handler_(request, shared_from_this());
}

void Connection::WatchForDisconnect() {
  stream_.socket().async_wait(asio::ip::tcp::socket::wait_read,
                              [self = shared_from_this(), exchange = exchange_](ErrorCode error) {
                                if (exchange != self->exchange_ || !self->busy_) return;
                                if (!error) self->CheckForDisconnect();
                                if (error) self->Gone();
                              });
}

void Connection::CheckForDisconnect() {
  char byte;
  const ssize_t got = recv(stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (got > 0) return;  // The client's next request, sent early.
  // The reactor may wake the wait for bytes of this very request that the read has taken since:
  // nothing to read is not the end.
  const bool spurious = got < 0 && (errno == EAGAIN || errno == EINTR);
  if (spurious) return WatchForDisconnect();
  Gone();
}

void Connection::OnDisconnect(std::function<void()> gone) {
  OnStrand([this, gone = std::move(gone)]() mutable {
    if (gone_) return gone();
    if (busy_ && !answer_ended_) on_gone_ = std::move(gone);
  });
}

void Connection::Gone() {
  gone_ = true;
  const auto gone = std::exchange(on_gone_, nullptr);
  const bool open = busy_ && !answer_ended_;
  Close();
  if (gone && open) gone();
}

void Connection::Close() {
  gone_ = true;
  busy_ = false;
  queued_.clear();
  ErrorCode ignored;
  stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  stream_.close();
}

// ---- Writing ----

void Connection::Respond(HttpResponse response) {
  OnStrand([this, response = std::move(response)]() mutable {
    http::response<http::string_body> message(
        static_cast<http::status>(response.status == 499 ? 400 : response.status), 11);
    message.set(http::field::content_type, response.content_type);
    for (const auto& [name, value] : response.headers) message.set(name, value);
    message.set(kRequestIdHeader, request_id_);
    message.keep_alive(keep_alive_);
    message.body() = std::move(response.body);
    message.prepare_payload();
    std::ostringstream wire;
    wire << message;
    answer_ended_ = true;
    Queue(wire.str());
  });
}

void Connection::BeginEvents() {
  OnStrand([this] {
    http::response<http::empty_body> message(http::status::ok, 11);
    message.set(http::field::content_type, "text/event-stream");
    message.set(http::field::cache_control, "no-cache");
    message.set(kRequestIdHeader, request_id_);
    if (chunked_) {
      message.chunked(true);
    } else {
      keep_alive_ = false;  // HTTP/1.0: the end of the connection is the end of the stream.
    }
    message.keep_alive(keep_alive_);
    std::ostringstream wire;
    wire << message.base();
    Queue(wire.str());
  });
}

std::string Connection::Frame(const std::string& text) const {
  if (!chunked_) return text;
  return absl::StrCat(absl::Hex(text.size()), "\r\n", text, "\r\n");
}

void Connection::SendEvent(std::string data) {
  OnStrand([this, data = std::move(data)] { Queue(Frame(absl::StrCat("data: ", data, "\n\n"))); });
}

void Connection::EndEvents() {
  OnStrand([this] {
    answer_ended_ = true;
    Queue(chunked_ ? "0\r\n\r\n" : "");
  });
}

void Connection::AbortEvents() {
  OnStrand([this] {
    answer_ended_ = true;
    keep_alive_ = false;  // FinishAnswer closes, and the last chunk is missing.
    Queue("");
  });
}

void Connection::Queue(const std::string& bytes) {
  if (gone_) return;
  queued_ += bytes;
  if (queued_.size() > kQueueLimitBytes && !answer_ended_) return Gone();
  WriteQueued();
}

void Connection::WriteQueued() {
  if (write_under_way_ || gone_) return;
  if (queued_.empty()) {
    if (answer_ended_) FinishAnswer();
    return;
  }
  writing_ = std::exchange(queued_, "");
  write_under_way_ = true;
  stream_.expires_after(std::chrono::seconds(options_.idle_timeout_s));
  asio::async_write(stream_, asio::buffer(writing_),
                    [self = shared_from_this()](ErrorCode error, size_t) {
                      self->write_under_way_ = false;
                      if (error) return self->Gone();
                      self->stream_.expires_never();
                      self->WriteQueued();
                    });
}

void Connection::FinishAnswer() {
  busy_ = false;
  on_gone_ = nullptr;
  if (!keep_alive_) return Close();
  ReadHeader();
}

}  // namespace baton
