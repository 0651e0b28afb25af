// A request's body as one string that grows as bytes come (Beast's concept Body). Beast's own
// string_body reserves what the header announces: a thousand clients that announce 16 MiB and send
// nothing would take 16 GiB of address space.
#ifndef COMMON_HTTP_REQUEST_BODY_H_
#define COMMON_HTTP_REQUEST_BODY_H_

#include <boost/asio/buffer.hpp>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/optional.hpp>
#include <boost/system/error_code.hpp>
#include <cstddef>
#include <cstdint>
#include <string>

namespace baton {

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

}  // namespace baton

#endif  // COMMON_HTTP_REQUEST_BODY_H_
