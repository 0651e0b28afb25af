// Connection's way out: what a handler answers, as bytes to a client that may read slowly or not.
#include <boost/asio/post.hpp>
#include <boost/asio/socket_base.hpp>
#include <boost/beast/http/status.hpp>
#include <chrono>
#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/strings.h"
#include "common/http/connection.h"

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

namespace {

namespace asio = boost::asio;
using Tcp = asio::ip::tcp;

// A client that lets this much of a stream pile up does not read; it is cut off rather than fed
// from memory.
constexpr size_t kQueueLimitBytes = size_t{4} << 20;
constexpr size_t kKeptCapacityBytes = size_t{64} * 1024;
constexpr auto kProbeInterval = std::chrono::seconds(5);

}  // namespace

// ---- The exchange's calls ----

void Connection::Respond(uint64_t number, HttpResponse response) {
  OnExchange(number, [this, response = std::move(response)] { RespondNow(response); });
}

void Connection::ExpectEvents(uint64_t number, EventTimes times) {
  OnExchange(number, [this, times] {
    if (times.keepalive_ms <= 0 || answer_ == Answer::kComplete) return;
    event_times_ = times;
    WatchEvents(answer_ == Answer::kNone ? times.hold_ms : times.keepalive_ms);
  });
}

void Connection::BeginEvents(uint64_t number) {
  OnExchange(number, [this] { BeginEventsNow(); });
}

void Connection::SendEvent(uint64_t number, HttpEvent event) {
  OnExchange(number, [this, event = std::move(event)] {
    if (answer_ == Answer::kEvents) Queue(FormatEvent(form_, event));
  });
}

void Connection::EndEvents(uint64_t number, bool complete) {
  OnExchange(number, [this, complete] { EndEventsNow(complete); });
}

void Connection::RespondOrEnd(uint64_t number, HttpResponse response,
                              std::vector<HttpEvent> events) {
  OnExchange(number, [this, response = std::move(response), events = std::move(events)] {
    if (answer_ == Answer::kNone) return RespondNow(response);
    if (answer_ != Answer::kEvents) return;
    for (const HttpEvent& event : events) Queue(FormatEvent(form_, event));
    EndEventsNow(/*complete=*/true);
  });
}

void Connection::OnDisconnect(uint64_t number, std::function<void()> gone) {
  OnStrand([this, number, gone = std::move(gone)]() mutable {
    if (number != number_ || answer_ == Answer::kComplete) return;
    if (phase_ == Phase::kClosed) return gone();
    if (phase_ == Phase::kServing) on_gone_ = std::move(gone);
  });
}

// Always posted, never run at once: the answer itself may still be on its way from another thread.
void Connection::Abandon(uint64_t number) {
  asio::post(socket_.get_executor(), [self = shared_from_this(), number] {
    if (number != self->number_ || self->phase_ != Phase::kServing) return;
    if (self->answer_ == Answer::kEvents) return self->EndEvents(number, /*complete=*/false);
    self->RespondNow(self->context_.options.format_error(
        500, "the request was given up without an answer; this is a defect of the server"));
  });
}

void Connection::RespondNow(const HttpResponse& response) {
  if (phase_ != Phase::kServing || answer_ != Answer::kNone) return;
  answer_ = Answer::kComplete;
  on_gone_ = nullptr;
  if (context_.draining.load()) form_.keep_alive = false;
  Queue(FormatAnswer(form_, response));
}

void Connection::BeginEventsNow() {
  if (answer_ != Answer::kNone) return;
  answer_ = Answer::kEvents;
  if (!form_.http_1_1) form_.keep_alive = false;  // The stream's end is the connection's.
  Queue(FormatEventsHead(form_));
}

void Connection::EndEventsNow(bool complete) {
  if (answer_ == Answer::kComplete) return;
  if (answer_ == Answer::kNone) return Close();  // Ends what has not begun.
  answer_ = Answer::kComplete;
  on_gone_ = nullptr;
  aborted_ = !complete;
  if (aborted_) form_.keep_alive = false;  // The last chunk is missing.
  Queue(complete ? FormatEventsEnd(form_) : "");
}

// ---- Streams that have nothing to say ----

void Connection::WatchEvents(int64_t after_ms) {
  silence_.expires_after(std::chrono::milliseconds(after_ms));
  silence_.async_wait([self = shared_from_this(), number = number_](ErrorCode error) {
    if (!error && number == self->number_ && self->phase_ == Phase::kServing) self->OnSilence();
  });
}

// One timer serves many events: it looks how long ago the last one was when it expires.
void Connection::OnSilence() {
  if (answer_ == Answer::kComplete) return;
  const int64_t left_ms = event_times_.keepalive_ms - (NowUs() - queued_us_) / 1000;
  if (answer_ == Answer::kEvents && left_ms > 0) return WatchEvents(left_ms);
  BeginEventsNow();
  // A client that does not read what it has been sent is not sent more.
  if (!write_under_way_ || queued_.empty()) Queue(FormatEventComment(form_));
  if (phase_ == Phase::kServing) WatchEvents(event_times_.keepalive_ms);
}

// ---- Writing ----

void Connection::Queue(std::string bytes) {
  if (!tls_.has_value()) return QueueAsIs(std::move(bytes));
  tls_->Send(bytes);
  QueueAsIs(tls_->TakeOutput());
}

void Connection::QueueAsIs(std::string bytes) {
  if (phase_ == Phase::kClosed) return;
  queued_us_ = NowUs();
  if (queued_.empty()) {
    queued_ = std::move(bytes);
  } else {
    queued_ += bytes;
  }
  if (queued_.size() > kQueueLimitBytes && answer_ == Answer::kEvents) return Gone();
  WriteQueued();
}

void Connection::WriteQueued() {
  if (write_under_way_ || phase_ == Phase::kClosed) return;
  if (written_ == writing_.size()) {
    if (writing_.capacity() > kKeptCapacityBytes) writing_ = {};
    writing_.clear();
    written_ = 0;
    if (queued_.empty()) {
      if (phase_ == Phase::kServing && answer_ == Answer::kComplete) FinishAnswer();
      return;
    }
    writing_.swap(queued_);
  }
  write_under_way_ = true;
  write_begun_us_ = NowUs();
  WatchSending(context_.options.send_timeout_ms);
  socket_.async_write_some(asio::buffer(writing_) + written_,
                           [self = shared_from_this()](ErrorCode error, size_t count) {
                             self->OnWritten(error, count);
                           });
}

void Connection::OnWritten(ErrorCode error, size_t count) {
  write_under_way_ = false;
  if (phase_ == Phase::kClosed) return;
  if (error) return Gone();
  written_ += count;
  WriteQueued();
}

// One timer serves many writes: it looks how long the current one has taken when it expires.
void Connection::WatchSending(int64_t after_ms) {
  if (std::exchange(sending_watched_, true)) return;
  send_watch_.expires_after(std::chrono::milliseconds(after_ms));
  send_watch_.async_wait([self = shared_from_this()](ErrorCode error) {
    self->sending_watched_ = false;
    if (error || !self->write_under_way_ || self->phase_ == Phase::kClosed) return;
    const int64_t left_ms =
        self->context_.options.send_timeout_ms - (NowUs() - self->write_begun_us_) / 1000;
    if (left_ms <= 0) return self->Gone();
    self->WatchSending(left_ms);
  });
}

void Connection::FinishAnswer() {
  exchange_.reset();
  probe_.cancel();
  silence_.cancel();
  if (aborted_ && !form_.http_1_1) {
    // Without chunks a clean end would look like the stream's.
    ErrorCode ignored;
    socket_.set_option(asio::socket_base::linger(true, 0), ignored);
    return Close();
  }
  if (!form_.keep_alive) return Linger();
  Enter(Phase::kIdle);
  context_.registry.Waiting(id_);
  Advance();  // It may have sent its next request early.
}

// Closing at once would reset a connection whose client is still sending, and the reset may
// overtake the answer (RFC 9112, 9.6).
void Connection::Linger() {
  ErrorCode ignored;
  if (tls_.has_value()) {
    tls_->Close();
    // A few bytes after everything else has been written: there is room, or the client is gone.
    socket_.write_some(asio::buffer(tls_->TakeOutput()), ignored);
  }
  socket_.shutdown(Tcp::socket::shutdown_send, ignored);
  if (end_of_input_) return Close();
  reader_.DropBuffered();
  Enter(Phase::kLingering);
  context_.registry.Waiting(id_);
}

// ---- Half-closed clients ----

// A client that has closed its half may wait for its answer or be gone. Only bytes tell: a peer
// that is gone answers them with a reset. Before an answer that is a 100, which a client that waits
// for none discards (RFC 9110, 15.2.1); in a stream a comment. HTTP/1.0 before its answer has
// neither: there the kernel's keepalive finds out.
void Connection::ProbeHalfClosed() {
  if (phase_ != Phase::kServing || answer_ == Answer::kComplete) return;
  if (answer_ == Answer::kEvents) {
    Queue(FormatEventComment(form_));
  } else if (form_.http_1_1) {
    Queue(std::string(kContinue));
  }
  probe_.expires_after(kProbeInterval);
  probe_.async_wait([self = shared_from_this()](ErrorCode error) {
    if (!error) self->ProbeHalfClosed();
  });
}

void Connection::WatchForReset() {
  socket_.async_wait(Tcp::socket::wait_error, [self = shared_from_this()](ErrorCode error) {
    if (!error && self->phase_ != Phase::kClosed) self->Gone();
  });
}

}  // namespace baton
