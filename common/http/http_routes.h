// A table of paths and methods, itself an HttpHandler: finds a request's handler, and answers what
// none is for: 404, 405 with Allow, OPTIONS.
#ifndef COMMON_HTTP_HTTP_ROUTES_H_
#define COMMON_HTTP_HTTP_ROUTES_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/http/http_handler.h"

namespace baton {

class HttpRoutes {
 public:
  explicit HttpRoutes(HttpErrorFormat format_error) : format_error_(std::move(format_error)) {}

  // `path`: all of it, or a beginning followed by '*', such as "/v1/models/*"; whole paths come
  // first. GET serves HEAD too. Before Handle.
  void Add(std::string method, std::string path, HttpHandler handler);

  // Thread-safe.
  void Handle(const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) const;

 private:
  struct Route {
    std::string method;
    std::string path;
    HttpHandler handler;
  };

  std::vector<const Route*> Find(std::string_view path) const;

  const HttpErrorFormat format_error_;
  std::vector<Route> routes_;
};

}  // namespace baton

#endif  // COMMON_HTTP_HTTP_ROUTES_H_
