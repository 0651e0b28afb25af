#include "services/baton/http_get.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/net/host.h"

namespace baton {
namespace {

namespace beast = boost::beast;
using Response = beast::http::response<beast::http::string_body>;

// One answer; who gives it is on this machine.
constexpr int kAnswerMs = 1000;

// `stream` is connected, and encrypted if it is to be. Only asynchronous operations heed the
// deadline; each handler starts the next one.
template <class Stream>
void Get(Stream& stream, const beast::http::request<beast::http::empty_body>& request,
         beast::flat_buffer& buffer, Response& response, beast::error_code& error) {
  beast::http::async_write(stream, request, [&](beast::error_code write_error, size_t) {
    error = write_error;
    if (error) return;
    beast::http::async_read(stream, buffer, response,
                            [&](beast::error_code read_error, size_t) { error = read_error; });
  });
}

}  // namespace

absl::StatusOr<HttpAnswer> HttpGet(const HttpTarget& target, const std::string& path) {
  boost::asio::io_context context{1};
  boost::asio::ssl::context tls(boost::asio::ssl::context::tls_client);
  beast::ssl_stream<beast::tcp_stream> stream(context, tls);
  beast::tcp_stream& plain = stream.next_layer();
  beast::error_code error;
  beast::http::request<beast::http::empty_body> request(beast::http::verb::get, path, 11);
  request.set(beast::http::field::host, net::JoinHostPort(target.host, target.port));
  request.keep_alive(false);
  beast::flat_buffer buffer;
  Response response;
  const auto address = boost::asio::ip::make_address(target.host, error);
  plain.expires_after(std::chrono::milliseconds(kAnswerMs));
  plain.async_connect(boost::asio::ip::tcp::endpoint(address, static_cast<uint16_t>(target.port)),
                      [&](beast::error_code connect_error) {
                        error = connect_error;
                        if (error) return;
                        if (!target.https) return Get(plain, request, buffer, response, error);
                        stream.async_handshake(boost::asio::ssl::stream_base::client,
                                               [&](beast::error_code handshake_error) {
                                                 error = handshake_error;
                                                 if (!error)
                                                   Get(stream, request, buffer, response, error);
                                               });
                      });
  context.run();
  if (error) {
    return absl::UnavailableError(absl::StrCat(net::JoinHostPort(target.host, target.port),
                                               " does not answer: ", error.message()));
  }
  return HttpAnswer{static_cast<int>(response.result_int()), std::move(response.body())};
}

}  // namespace baton
