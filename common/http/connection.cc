#include "common/http/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/dispatch.hpp>
#include <chrono>
#include <exception>
#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/random.h"

namespace baton {
namespace {

namespace asio = boost::asio;
using Tcp = asio::ip::tcp;

constexpr size_t kReadBytes = size_t{64} * 1024;
// What a client may send ahead while an answer is under way: pipelined requests.
constexpr size_t kAheadLimitBytes = size_t{64} * 1024;
constexpr int64_t kMinBodyBytesPerSecond = int64_t{16} * 1024;
constexpr int64_t kReservedIdleMs = 2'000;
constexpr int64_t kLingerMs = 2'000;
// A client whose machine vanished sends no end: the kernel asks after it.
constexpr int kKeepaliveIdleSeconds = 30;
constexpr int kKeepaliveIntervalSeconds = 10;
constexpr int kKeepaliveProbes = 3;

void SetOption(Tcp::socket& socket, int level, int name, int value) {
  // Without an option the connection works all the same.
  (void)setsockopt(socket.native_handle(), level, name, &value, sizeof(value));
}

// The one place where a handler's exceptions (a library's, out of memory) end. The exchange then
// goes unanswered, which it answers itself.
void RunHandler(const HttpHandler& handler, const HttpRequest& request,
                const std::shared_ptr<Exchange>& exchange) {
  if (exchange->gone()) return;
  try {
    handler(request, exchange);
  } catch (const std::exception& error) {
    LOG(kError) << "the handler of " << request.method << " failed: " << error.what();
  }
}

}  // namespace

Connection::Connection(Tcp::socket socket, ServerContext& context, uint64_t id, bool reserved)
    : socket_(std::move(socket)),
      context_(context),
      id_(id),
      reserved_(reserved),
      deadline_(socket_.get_executor()),
      send_watch_(socket_.get_executor()),
      probe_(socket_.get_executor()),
      silence_(socket_.get_executor()),
      reader_(context.options.max_request_bytes) {}

void Connection::Start() {
  OnStrand([this] {
    ErrorCode error;
    socket_.non_blocking(true, error);
    if (error) return Close();
    SetOption(socket_, IPPROTO_TCP, TCP_NODELAY, 1);  // Tokens are small and must leave at once.
    SetOption(socket_, SOL_SOCKET, SO_KEEPALIVE, 1);
    SetOption(socket_, IPPROTO_TCP, TCP_KEEPIDLE, kKeepaliveIdleSeconds);
    SetOption(socket_, IPPROTO_TCP, TCP_KEEPINTVL, kKeepaliveIntervalSeconds);
    SetOption(socket_, IPPROTO_TCP, TCP_KEEPCNT, kKeepaliveProbes);
    if (context_.options.tls != nullptr) tls_.emplace(context_.options.tls->Context(NowUs()));
    // A handshake has as long as a header.
    Enter(tls_.has_value() ? Phase::kHeader : Phase::kIdle);
    WaitForBytes();
  });
}

void Connection::Evict() {
  OnStrand([this] { Close(); });
}

void Connection::Drain() {
  OnStrand([this] {
    form_.keep_alive = false;
    if (phase_ == Phase::kIdle) Close();
  });
}

// ---- Bytes ----

// Waiting takes no buffer, so an idle connection holds next to nothing.
void Connection::WaitForBytes() {
  if (waiting_for_bytes_ || end_of_input_ || phase_ == Phase::kClosed) return;
  waiting_for_bytes_ = true;
  socket_.async_wait(Tcp::socket::wait_read,
                     [self = shared_from_this()](ErrorCode error) { self->OnReadable(error); });
}

void Connection::OnReadable(ErrorCode error) {
  waiting_for_bytes_ = false;
  if (phase_ == Phase::kClosed) return;
  static thread_local std::array<char, kReadBytes> block;
  const size_t count = error ? 0 : socket_.read_some(asio::buffer(block), error);
  if (error == asio::error::eof) {
    end_of_input_ = true;
    return OnEndOfInput();
  }
  if (error && error != asio::error::would_block) return Gone();
  if (!error)
    tls_.has_value() ? OnEncrypted({block.data(), count}) : OnBytes({block.data(), count});
  WaitForBytes();
}

void Connection::OnEncrypted(std::string_view bytes) {
  const bool began_established = tls_->established();
  std::string plain;
  const absl::Status status = tls_->Receive(bytes, plain);
  QueueAsIs(tls_->TakeOutput());
  if (!status.ok()) return tls_->spoke_plain_http() ? OnNoTls() : Gone();
  if (!began_established && tls_->established() && phase_ == Phase::kHeader) Enter(Phase::kIdle);
  if (!plain.empty()) OnBytes(plain);
  if (tls_->peer_closed() && !end_of_input_ && phase_ != Phase::kClosed) {
    end_of_input_ = true;
    OnEndOfInput();
  }
}

// Someone forgot the s of https: told in what they can read.
void Connection::OnNoTls() {
  tls_.reset();
  Refuse(400, "this port speaks HTTPS; the request came without TLS");
}

void Connection::OnBytes(std::string_view bytes) {
  if (phase_ == Phase::kLingering) return;
  if (phase_ != Phase::kServing) {
    reader_.Append(bytes);
    return Advance();
  }
  if (overrun_) return;
  overrun_ = reader_.buffered_bytes() + bytes.size() > kAheadLimitBytes;
  if (!overrun_) return reader_.Append(bytes);
  // Not reading on would hide the client's leaving behind what it sent; keeping it all would let
  // it fill the memory. Requests that came ahead are dropped with the connection, as a client that
  // sends ahead must expect (RFC 9112, 9.3.2).
  reader_.DropBuffered();
  form_.keep_alive = false;
}

// The client has closed its half of the connection or all of it: the bytes look the same.
void Connection::OnEndOfInput() {
  if (phase_ == Phase::kLingering) return Close();
  if (phase_ != Phase::kServing) return Advance();
  WatchForReset();
  ProbeHalfClosed();
}

// ---- Requests ----

void Connection::Advance() {
  while (phase_ == Phase::kIdle || phase_ == Phase::kHeader || phase_ == Phase::kBody) {
    switch (reader_.Read()) {
      case RequestReader::Event::kHeader:
        if (!OnHeader()) return;
        break;
      case RequestReader::Event::kRequest:
        if (ChargeBody()) Dispatch();
        return;
      case RequestReader::Event::kRefused:
        return Refuse(reader_.refusal().status, reader_.refusal().message);
      case RequestReader::Event::kNeedMore:
        if (end_of_input_) return OnNothingMore();
        if (reader_.in_body()) return OnBodyProgress();
        if (reader_.in_header() && phase_ == Phase::kIdle) Enter(Phase::kHeader);
        return;
    }
  }
}

void Connection::OnNothingMore() {
  if (!reader_.in_header() && !reader_.in_body()) return Close();
  Refuse(400, "the request ends in the middle");
}

bool Connection::OnHeader() {
  const std::vector<std::string>& paths = context_.options.reserved_paths;
  if (reserved_ && std::find(paths.begin(), paths.end(), reader_.request().path) == paths.end()) {
    context_.options.observer(HttpServerEvent::kRefused);
    Refuse(503, "all connections are in use; try again later");
    return false;
  }
  Enter(Phase::kBody);
  body_begun_us_ = NowUs();
  charge_ = BodyBudget::Charge(context_.budget);
  if (reader_.header().expects_continue && reader_.buffered_bytes() == 0) {
    Queue(std::string(kContinue));
  }
  return true;
}

bool Connection::ChargeBody() {
  if (charge_.GrowTo(reader_.body_bytes())) return true;
  ++context_.refused_bodies;
  context_.options.observer(HttpServerEvent::kBodyRefused);
  Refuse(503, "too many large requests at once; try again later");
  return false;
}

void Connection::OnBodyProgress() {
  if (!ChargeBody()) return;
  context_.registry.Waiting(id_);
  const auto body_bytes = static_cast<int64_t>(reader_.body_bytes());
  const int64_t allowed_ms =
      context_.options.receive_timeout_ms + body_bytes * 1000 / kMinBodyBytesPerSecond;
  SetDeadline(std::max<int64_t>(0, allowed_ms - (NowUs() - body_begun_us_) / 1000));
}

void Connection::Dispatch() {
  if (!context_.registry.BeginServing(id_)) return Close();
  const RequestReader::Header header = reader_.header();
  HttpRequest request = reader_.Take();
  const bool last = reserved_ || context_.draining.load();
  BeginAnswer({header.http_1_1, header.head, header.keep_alive && !last, request.request_id,
               CorsHeaders(context_.options.cors, request)});
  if (const auto preflight = AnswerPreflight(context_.options.cors, request)) {
    return RespondNow(*preflight);
  }
  const auto exchange = std::make_shared<Exchange>(shared_from_this(), number_);
  exchange_ = exchange;
  if (context_.workers == nullptr || request.body.empty()) {
    charge_ = {};
    RunHandler(context_.handler, request, exchange);
  } else {
    struct Work {
      HttpRequest request;
      BodyBudget::Charge charge;
    };
    const auto& takes_long = context_.options.takes_long;
    const bool slow = takes_long != nullptr && takes_long(request);
    const size_t bytes = std::max(request.body.size(), slow ? WorkerPool::kLargeBytes + 1 : 0);
    const auto work = std::make_shared<Work>(Work{std::move(request), std::move(charge_)});
    context_.workers->Submit(bytes, [&handler = context_.handler, work, exchange] {
      RunHandler(handler, work->request, exchange);
    });
  }
  if (end_of_input_) ProbeHalfClosed();
}

void Connection::BeginAnswer(AnswerForm form) {
  form_ = std::move(form);
  Enter(Phase::kServing);
  ++number_;
  answer_ = Answer::kNone;
  aborted_ = false;
  event_times_ = {};
}

// ---- Life ----

void Connection::Enter(Phase phase) {
  phase_ = phase;
  switch (phase) {
    case Phase::kIdle:
      return SetDeadline(reserved_ ? kReservedIdleMs : context_.options.idle_timeout_ms);
    case Phase::kHeader:
    case Phase::kBody:
      return SetDeadline(context_.options.receive_timeout_ms);
    case Phase::kLingering:
      return SetDeadline(kLingerMs);
    case Phase::kServing:
    case Phase::kClosed:
      ++deadline_number_;
      deadline_.cancel();
  }
}

void Connection::SetDeadline(int64_t after_ms) {
  deadline_.expires_after(std::chrono::milliseconds(after_ms));
  deadline_.async_wait([self = shared_from_this(), number = ++deadline_number_](ErrorCode error) {
    if (!error && number == self->deadline_number_) self->OnDeadline();
  });
}

void Connection::OnDeadline() {
  if (phase_ == Phase::kHeader || phase_ == Phase::kBody) {
    return Refuse(408, "the request took too long to arrive");
  }
  Close();
}

void Connection::Refuse(int status, const std::string& message) {
  if (tls_.has_value() && !tls_->established()) return Close();  // It could not read it.
  if (!context_.registry.BeginServing(id_)) return Close();
  charge_ = {};
  const HttpRequest& request = reader_.request();
  BeginAnswer({true, reader_.header().head, /*keep_alive=*/false,
               request.request_id.empty() ? RandomHex(16) : request.request_id,
               CorsHeaders(context_.options.cors, request)});
  HttpResponse response = context_.options.format_error(status, message);
  if (status == 503) response.headers.emplace_back("Retry-After", "1");
  RespondNow(response);
}

void Connection::Gone() {
  const auto gone = std::exchange(on_gone_, nullptr);
  const bool open = phase_ == Phase::kServing && answer_ != Answer::kComplete;
  if (const auto exchange = exchange_.lock(); exchange != nullptr) exchange->set_gone();
  Close();
  if (gone && open) gone();
}

void Connection::Close() {
  if (phase_ == Phase::kClosed) return;
  Enter(Phase::kClosed);
  on_gone_ = nullptr;
  send_watch_.cancel();
  probe_.cancel();
  silence_.cancel();
  queued_ = {};
  charge_ = {};
  reader_.DropBuffered();
  ErrorCode ignored;
  socket_.close(ignored);
  context_.registry.Closed(id_);
}

}  // namespace baton
