// The router's HTTP front: OpenAI's routes on an HTTP server, as the router's options say.
#ifndef SERVICES_ROUTER_HTTP_HTTP_FRONT_H_
#define SERVICES_ROUTER_HTTP_HTTP_FRONT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/http/http_server.h"
#include "proto/baton/v1/config.pb.h"
#include "services/router/gateway.h"
#include "services/router/http/openai_handler.h"

namespace baton::router {

class HttpFront {
 public:
  // Listens. `options` needs no paths and no form of errors: those are the front's own. `gateway`
  // outlives the front, and has let go of every sink before the front is destroyed.
  // `shown` is what the handler reads and shows of the router's options (openai_handler.h).
  static absl::StatusOr<std::unique_ptr<HttpFront>> Start(HttpServerOptions options,
                                                          Gateway& gateway,
                                                          const v1::Options& shown,
                                                          std::shared_ptr<SecretSet> api_keys);
  HttpFront(const HttpFront&) = delete;
  HttpFront& operator=(const HttpFront&) = delete;

  uint16_t port() const { return server_->port(); }
  HttpServerStats stats() const { return server_->stats(); }
  // Every answer closes its connection from now on.
  void BeginDrain() { server_->BeginDrain(); }
  // No new connections; idle ones are closed, running requests answered.
  void StopListening() { server_->StopListening(); }

 private:
  HttpFront(Gateway& gateway, const v1::Options& shown, std::shared_ptr<SecretSet> api_keys)
      : handler_(gateway, shown, std::move(api_keys)) {}

  OpenAiHandler handler_;
  std::unique_ptr<HttpServer> server_;  // Calls the handler, so it goes first.
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_HTTP_FRONT_H_
