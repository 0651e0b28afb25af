#include "common/transport/peer_address.h"

#include <xxhash.h>

#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton {
namespace {

constexpr uint32_t kMagic = 0x444e5442;  // "BTND"
constexpr uint16_t kVersion = 1;
constexpr uint16_t kVersionWithSecret = 2;

struct Envelope {
  uint32_t magic;
  uint16_t version;
  uint16_t secret_bytes;  // At the end.
  uint64_t bytes;
  uint64_t checksum;
};
static_assert(sizeof(Envelope) == 24, "the envelope travels as its bytes");

constexpr size_t kMaxSecretBytes = 256;
constexpr size_t kMaxUcxAddressBytes = kMaxPeerAddressBytes - sizeof(Envelope);

}  // namespace

std::string SealPeerAddress(std::string_view ucx_address, std::string_view secret) {
  std::string body(ucx_address);
  body.append(secret);
  BATON_CHECK(body.size() <= kMaxUcxAddressBytes && secret.size() <= kMaxSecretBytes)
      << ucx_address.size() << " bytes and a secret of " << secret.size();
  const Envelope envelope{kMagic, secret.empty() ? kVersion : kVersionWithSecret,
                          static_cast<uint16_t>(secret.size()), body.size(),
                          XXH64(body.data(), body.size(), /*seed=*/0)};
  std::string sealed(sizeof(envelope), '\0');
  std::memcpy(sealed.data(), &envelope, sizeof(envelope));
  return sealed.append(body);
}

absl::StatusOr<PeerAddress> OpenPeerAddress(std::string_view sealed) {
  Envelope envelope;
  if (sealed.size() <= sizeof(envelope)) {
    return absl::InvalidArgumentError(
        absl::StrCat("data-plane address: ", sealed.size(), " bytes are too few"));
  }
  std::memcpy(&envelope, sealed.data(), sizeof(envelope));
  if (envelope.magic != kMagic) {
    return absl::InvalidArgumentError("data-plane address: not one of Baton's");
  }
  if (envelope.version != kVersion && envelope.version != kVersionWithSecret) {
    return absl::InvalidArgumentError(absl::StrCat("data-plane address: version ", envelope.version,
                                                   ", this process speaks ", kVersion, " and ",
                                                   kVersionWithSecret));
  }
  const std::string_view body = sealed.substr(sizeof(envelope));
  if (envelope.bytes != body.size() || body.size() > kMaxUcxAddressBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data-plane address: ", body.size(), " bytes where ", envelope.bytes, " were announced"));
  }
  if (envelope.checksum != XXH64(body.data(), body.size(), /*seed=*/0)) {
    return absl::InvalidArgumentError("data-plane address: wrong checksum");
  }
  const bool has_secret = envelope.version == kVersionWithSecret;
  if (has_secret != (envelope.secret_bytes > 0) || envelope.secret_bytes > kMaxSecretBytes ||
      envelope.secret_bytes >= body.size()) {
    return absl::InvalidArgumentError(absl::StrCat("data-plane address: a secret of ",
                                                   envelope.secret_bytes, " bytes in version ",
                                                   envelope.version));
  }
  const size_t ucx_bytes = body.size() - envelope.secret_bytes;
  return PeerAddress{std::string(body.substr(0, ucx_bytes)), std::string(body.substr(ucx_bytes))};
}

}  // namespace baton
