// The bytes that one client sends, as requests: HTTP/1.1 and 1.0 by RFC 9112, with everything
// refused that could be read in two ways. No socket, no clock: what is handed in alone decides, so
// the rules are tested without a server.
#ifndef COMMON_HTTP_REQUEST_READER_H_
#define COMMON_HTTP_REQUEST_READER_H_

#include <boost/asio/buffer.hpp>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/optional.hpp>
#include <boost/system/error_code.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/http/http_handler.h"

namespace baton {

// A request's body as one string that grows as bytes come (Beast's concept Body). Beast's own
// string_body reserves what the header announces: a thousand clients that announce 16 MiB and send
// nothing would take 16 GiB of address space.
struct RequestBody {
  using value_type = std::string;

  class reader {  // Beast looks for these names.
   public:
    template <bool is_request, class Fields>
    reader(boost::beast::http::header<is_request, Fields>& /*header*/, value_type& body)
        : body_(body) {}

    void init(const boost::optional<std::uint64_t>& /*length*/, boost::system::error_code& error) {
      error = {};
    }

    template <class Buffers>
    size_t put(const Buffers& buffers, boost::system::error_code& error) {
      const size_t before = body_.size();
      for (const auto buffer : boost::beast::buffers_range_ref(buffers)) {
        body_.append(static_cast<const char*>(buffer.data()), buffer.size());
      }
      error = {};
      return body_.size() - before;
    }

    void finish(boost::system::error_code& error) { error = {}; }

   private:
    value_type& body_;
  };
};

// Why a request is refused before anybody has seen it. The connection ends with the answer, since
// where the next request would begin is unknown.
struct HttpRefusal {
  int status = 400;
  std::string message;
};

class RequestReader {
 public:
  enum class Event {
    kNeedMore,  // Everything was taken that could be.
    kHeader,    // The header of the next request is complete; call again for its body.
    kRequest,   // Take() has it.
    kRefused,   // refusal() says why; nothing more is read.
  };

  // What the connection must know of a request whose header is complete.
  struct Header {
    bool head = false;              // HEAD: answered as GET, without the body.
    bool keep_alive = false;        // The client would send another request.
    bool http_1_1 = false;          // Knows chunks and interim answers.
    bool expects_continue = false;  // Waits for 100 before it sends the body.
  };

  explicit RequestReader(size_t max_body_bytes) : max_body_bytes_(max_body_bytes) {}

  void Append(std::string_view bytes);
  Event Read();

  const Header& header() const { return header_; }
  const HttpRefusal& refusal() const { return refusal_; }
  // The request that is being read. From kHeader on it is complete except for its body and id.
  const HttpRequest& request() const { return request_; }
  HttpRequest Take();  // After kRequest; the reader goes on with the next one.

  bool in_header() const { return parser_.has_value() && !header_done_; }
  bool in_body() const { return header_done_; }
  size_t body_bytes() const { return header_done_ ? parser_->get().body().size() : 0; }
  size_t buffered_bytes() const { return buffer_.size(); }  // Not yet taken.
  void DropBuffered();

 private:
  using Parser = boost::beast::http::request_parser<RequestBody>;

  Event Refuse(int status, std::string message);
  Event RefuseMalformed(const boost::system::error_code& error);
  Event ReadHeader();
  Event ReadBody();
  void SkipEmptyLines();
  bool IsHalfLine() const;  // Perhaps the beginning of an empty one.
  bool ReadFields();        // False if refused.

  const size_t max_body_bytes_;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;  // For the request that is being read.
  bool header_done_ = false;
  bool refused_ = false;
  Header header_;
  HttpRequest request_;
  HttpRefusal refusal_;
};

// The target of a request line (RFC 9112, 3.2): origin form, absolute form, and OPTIONS' asterisk.
struct RequestTarget {
  std::string path;   // Percent-decoded; "*" for OPTIONS of the whole server.
  std::string query;  // Undecoded, without the '?'.
};

// nullopt for anything else: no path, a fragment, a broken or NUL escape.
std::optional<RequestTarget> ParseRequestTarget(std::string_view target, std::string_view method);

// Whether `text` may stand in a Host header: a name or address and perhaps a port. Empty is one.
bool IsAuthority(std::string_view text);

}  // namespace baton

#endif  // COMMON_HTTP_REQUEST_READER_H_
