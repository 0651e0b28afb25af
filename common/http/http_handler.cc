#include "common/http/http_handler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "common/base/strings.h"

namespace baton {

std::string_view FindHeader(const HttpHeaders& headers, std::string_view name) {
  for (const auto& [key, value] : headers) {
    if (absl::EqualsIgnoreCase(key, ToAbsl(name))) return value;
  }
  return {};
}

HttpResponse PlainHttpError(int status, const std::string& message) {
  return {status, "text/plain; charset=utf-8", message + "\n"};
}

namespace {

bool IsPrefix(std::string_view path) { return path.ends_with('*'); }

bool Matches(std::string_view route, std::string_view path) {
  if (path == "*") return true;  // OPTIONS of the whole server.
  if (!IsPrefix(route)) return route == path;
  return path.starts_with(route.substr(0, route.size() - 1));
}

}  // namespace

void HttpRoutes::Add(std::string method, std::string path, HttpHandler handler) {
  routes_.push_back({std::move(method), std::move(path), std::move(handler)});
  std::stable_partition(routes_.begin(), routes_.end(),
                        [](const Route& route) { return !IsPrefix(route.path); });
}

// Every method of the first path that matches.
std::vector<const HttpRoutes::Route*> HttpRoutes::Find(std::string_view path) const {
  std::vector<const Route*> found;
  for (const Route& route : routes_) {
    if (!Matches(route.path, path)) continue;
    if (path == "*" || found.empty() || found.front()->path == route.path) found.push_back(&route);
  }
  return found;
}

void HttpRoutes::Handle(const HttpRequest& request,
                        const std::shared_ptr<HttpExchange>& exchange) const {
  const std::vector<const Route*> found = Find(request.path);
  for (const Route* route : found) {
    if (route->method == request.method) return route->handler(request, exchange);
  }
  if (found.empty()) {
    return exchange->Respond(
        format_error_(404, Concat("no such path: ", request.method, " ", request.path)));
  }
  std::vector<std::string> methods;
  for (const Route* route : found) {
    methods.push_back(route->method);
    if (route->method == "GET") methods.emplace_back("HEAD");
  }
  methods.emplace_back("OPTIONS");
  std::sort(methods.begin(), methods.end());
  methods.erase(std::unique(methods.begin(), methods.end()), methods.end());
  std::string allowed;
  for (const std::string& method : methods) allowed += (allowed.empty() ? "" : ", ") + method;
  HttpResponse response;
  if (request.method == "OPTIONS") {
    response.status = 204;
    response.content_type.clear();
  } else {
    response = format_error_(
        405, Concat(request.path, " takes ", allowed, "; the method was ", request.method));
  }
  response.headers.emplace_back("Allow", allowed);
  exchange->Respond(std::move(response));
}

}  // namespace baton
