#include "services/router/grpc/authorization.h"

#include <string_view>

#include "services/router/bearer.h"

namespace baton::router {

grpc::Status CheckAuthorization(const grpc::CallbackServerContext& context, SecretSet& api_keys) {
  if (api_keys.asks_for_nothing()) return grpc::Status::OK;
  const auto& metadata = context.client_metadata();
  const auto given = metadata.find("authorization");
  if (given != metadata.end()) {
    const std::string_view key = BearerKey({given->second.data(), given->second.size()});
    if (api_keys.Accepts(key)) return grpc::Status::OK;
  }
  return {grpc::StatusCode::UNAUTHENTICATED,
          "missing or wrong API key: send the metadata 'authorization: Bearer KEY'"};
}

}  // namespace baton::router
