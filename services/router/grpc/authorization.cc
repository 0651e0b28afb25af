#include "services/router/grpc/authorization.h"

#include <string_view>

#include "services/router/bearer.h"

namespace baton::router {
namespace {

bool EqualInConstantTime(std::string_view given, const std::string& expected) {
  unsigned difference = given.size() == expected.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    const char other = expected[i % expected.size()];
    difference |= static_cast<unsigned char>(given[i] ^ other);
  }
  return difference == 0;
}

}  // namespace

grpc::Status CheckAuthorization(const grpc::CallbackServerContext& context,
                                const std::string& api_key) {
  if (api_key.empty()) return grpc::Status::OK;
  const auto& metadata = context.client_metadata();
  const auto given = metadata.find("authorization");
  if (given != metadata.end()) {
    const std::string_view key = BearerKey({given->second.data(), given->second.size()});
    if (EqualInConstantTime(key, api_key)) return grpc::Status::OK;
  }
  return {grpc::StatusCode::UNAUTHENTICATED,
          "missing or wrong API key: send the metadata 'authorization: Bearer KEY'"};
}

}  // namespace baton::router
