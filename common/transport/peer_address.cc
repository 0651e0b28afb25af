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

struct Envelope {
  uint32_t magic;
  uint16_t version;
  uint16_t reserved;
  uint64_t bytes;
  uint64_t checksum;
};
static_assert(sizeof(Envelope) == 24, "the envelope travels as its bytes");

constexpr size_t kMaxUcxAddressBytes = kMaxPeerAddressBytes - sizeof(Envelope);

}  // namespace

std::string SealPeerAddress(std::string_view ucx_address) {
  BATON_CHECK(ucx_address.size() <= kMaxUcxAddressBytes) << ucx_address.size() << " bytes";
  const Envelope envelope{kMagic, kVersion, 0, ucx_address.size(),
                          XXH64(ucx_address.data(), ucx_address.size(), /*seed=*/0)};
  std::string sealed(sizeof(envelope), '\0');
  std::memcpy(sealed.data(), &envelope, sizeof(envelope));
  return sealed.append(ucx_address);
}

absl::StatusOr<std::string> OpenPeerAddress(std::string_view sealed) {
  Envelope envelope;
  if (sealed.size() <= sizeof(envelope)) {
    return absl::InvalidArgumentError(
        absl::StrCat("data-plane address: ", sealed.size(), " bytes are too few"));
  }
  std::memcpy(&envelope, sealed.data(), sizeof(envelope));
  if (envelope.magic != kMagic) {
    return absl::InvalidArgumentError("data-plane address: not one of Baton's");
  }
  if (envelope.version != kVersion || envelope.reserved != 0) {
    return absl::InvalidArgumentError(absl::StrCat("data-plane address: version ", envelope.version,
                                                   ", this process speaks ", kVersion));
  }
  const std::string_view ucx_address = sealed.substr(sizeof(envelope));
  if (envelope.bytes != ucx_address.size() || ucx_address.size() > kMaxUcxAddressBytes) {
    return absl::InvalidArgumentError(absl::StrCat("data-plane address: ", ucx_address.size(),
                                                   " bytes where ", envelope.bytes,
                                                   " were announced"));
  }
  if (envelope.checksum != XXH64(ucx_address.data(), ucx_address.size(), /*seed=*/0)) {
    return absl::InvalidArgumentError("data-plane address: wrong checksum");
  }
  return std::string(ucx_address);
}

}  // namespace baton
