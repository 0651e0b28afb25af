// One client's connection: requests one after the other, each answered whole or as events. Lives on
// its own strand; public methods may be called from any thread and post to it.
#ifndef COMMON_HTTP_CONNECTION_H_
#define COMMON_HTTP_CONNECTION_H_

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/http/http_server.h"

namespace baton {

class Connection : public HttpExchange, public std::enable_shared_from_this<Connection> {
 public:
  // `options` and `handler` outlive the connection; `on_close` is called by its destructor.
  Connection(boost::asio::ip::tcp::socket socket, const HttpServerOptions& options,
             const HttpHandler& handler, std::function<void()> on_close);
  ~Connection() override;

  void Run();                       // Reads the first request.
  void Refuse(HttpResponse reply);  // Answers without reading, then closes.

  void Respond(HttpResponse response) override;
  void BeginEvents() override;
  void SendEvent(std::string data) override;
  void EndEvents() override;
  void AbortEvents() override;
  void OnDisconnect(std::function<void()> gone) override;

 private:
  using ErrorCode = boost::system::error_code;

  void OnStrand(std::function<void()> run);
  void ReadHeader();
  void ReadBody();
  void OnRequest(ErrorCode error);
  void OnReadError(ErrorCode error);
  void WatchForDisconnect();
  void CheckForDisconnect();
  void Queue(const std::string& bytes);
  void WriteQueued();
  void FinishAnswer();
  void Gone();
  void Close();
  std::string Frame(const std::string& text) const;

  boost::beast::tcp_stream stream_;
  const HttpServerOptions& options_;
  const HttpHandler& handler_;
  const std::function<void()> on_close_;

  boost::beast::flat_buffer buffer_;
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
  std::string request_id_;
  bool busy_ = false;  // A request is being answered.
  bool keep_alive_ = false;
  bool chunked_ = false;
  bool answer_ended_ = false;
  bool gone_ = false;
  uint64_t exchange_ = 0;  // Counts requests, so that an old watch is told from the current one.
  std::function<void()> on_gone_;
  std::string queued_;  // To be written after `writing_`.
  std::string writing_;
  bool write_under_way_ = false;
};

}  // namespace baton

#endif  // COMMON_HTTP_CONNECTION_H_
