// What the front says about itself: the start page, versions, models, settings. In the forms of
// vLLM and SGLang where they have one.
#ifndef SERVICES_ROUTER_HTTP_INFO_ENDPOINTS_H_
#define SERVICES_ROUTER_HTTP_INFO_ENDPOINTS_H_

#include <cstdint>
#include <string>

#include "common/http/http_handler.h"
#include "proto/baton/v1/config.pb.h"
#include "services/router/gateway.h"
#include "services/router/http/json_input.h"

namespace baton::router {

// Every option of the router with its effective value, but for secrets.
Json SettingsOf(const v1::Options& options);

class InfoEndpoints {
 public:
  // `gateway` outlives it. With `guarded` the start page, which needs no key, names no model.
  InfoEndpoints(const Gateway& gateway, const v1::Options& options, bool guarded);

  void Root(HttpExchange& exchange) const;
  void Version(HttpExchange& exchange) const;
  void ServerInfo(HttpExchange& exchange) const;
  void ModelInfo(HttpExchange& exchange) const;
  void Models(HttpExchange& exchange) const;
  void Model(const std::string& name, HttpExchange& exchange) const;
  void Health(HttpExchange& exchange) const;
  void Readiness(HttpExchange& exchange) const;
  void Metrics(HttpExchange& exchange) const;

 private:
  const Gateway& gateway_;
  const Json settings_;
  const std::string model_path_;
  const std::string tokenizer_path_;
  const bool guarded_;
  const int64_t started_s_;
};

}  // namespace baton::router

#endif  // SERVICES_ROUTER_HTTP_INFO_ENDPOINTS_H_
