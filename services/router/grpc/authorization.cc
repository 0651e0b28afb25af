#include "services/router/grpc/authorization.h"

namespace baton::router {
namespace {

bool EqualInConstantTime(const grpc::string_ref& given, const std::string& expected) {
  unsigned difference = given.size() == expected.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    const char other = expected[i % expected.size()];
    difference |= static_cast<unsigned char>(given.data()[i] ^ other);
  }
  return difference == 0;
}

}  // namespace

grpc::Status CheckAuthorization(const grpc::CallbackServerContext& context,
                                const std::string& api_key) {
  if (api_key.empty()) return grpc::Status::OK;
  const auto& metadata = context.client_metadata();
  const auto given = metadata.find("authorization");
  if (given != metadata.end() && EqualInConstantTime(given->second, "Bearer " + api_key)) {
    return grpc::Status::OK;
  }
  return {grpc::StatusCode::UNAUTHENTICATED,
          "missing or wrong API key: send the metadata 'authorization: Bearer KEY'"};
}

}  // namespace baton::router
