#include "common/transport/gate.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <cstring>
#include <vector>

#include "common/base/check.h"
#include "common/transport/data_plane.h"

namespace baton {
namespace {

constexpr int kSecretBytes = 32;

}  // namespace

std::string MakePlaneSecret() {
  std::string secret(kSecretBytes, '\0');
  BATON_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(secret.data()), kSecretBytes) == 1);
  return secret;
}

uint64_t NewSession() {
  uint64_t session = 0;
  while (session == 0) {
    BATON_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(&session), sizeof(session)) == 1);
  }
  return session;
}

Proof ProofOf(std::string_view secret, uint64_t session, const GreetingSender& greeting_sender,
              std::span<const std::byte> address) {
  const std::vector<std::byte> said = Joined({BytesOf(session), BytesOf(greeting_sender), address});
  Proof proof;
  unsigned bytes = 0;
  HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
       reinterpret_cast<const unsigned char*>(said.data()), said.size(),
       reinterpret_cast<unsigned char*>(proof.data()), &bytes);
  BATON_CHECK(bytes == proof.size());
  return proof;
}

std::optional<uint64_t> TakePass(std::span<const std::byte>& message) {
  Pass pass;
  if (message.size() < sizeof(pass)) return std::nullopt;
  std::memcpy(&pass, message.data(), sizeof(pass));
  if (pass.magic != kPassMagic || pass.version != Pass{}.version) return std::nullopt;
  message = message.subspan(sizeof(pass));
  return pass.session;
}

std::vector<std::byte> WithPass(uint64_t session, std::span<const std::byte> message) {
  const Pass pass{.session = session};
  return Joined({BytesOf(pass), message});
}

bool Gate::Admit(uint64_t session, const GreetingSender& greeting_sender,
                 std::span<const std::byte> address, const Proof& proof) {
  const Proof right = ProofOf(secret_, session, greeting_sender, address);
  if (CRYPTO_memcmp(right.data(), proof.data(), right.size()) != 0 || Knows(session)) return false;
  Remember(session);
  return true;
}

void Gate::Remember(uint64_t session) {
  if (!sessions_.insert(session).second) return;
  order_.push_back(session);
  if (order_.size() <= kMaxSessions) return;
  sessions_.erase(order_.front());
  order_.pop_front();
}

}  // namespace baton
