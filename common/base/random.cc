#include "common/base/random.h"

#include <sys/random.h>

#include <array>
#include <cstddef>

#include "common/base/check.h"

namespace baton {
namespace {

constexpr size_t kMostBytes = 256;  // What one call of the system gives whole.

// Rejected: std::random_device, which asks the processor what it can do whenever it is made: in a
// virtual machine that takes ten times as long as all else here.
void Fill(void* bytes, size_t count) {
  BATON_CHECK(getentropy(bytes, count) == 0) << "the operating system has no random bytes";
}

}  // namespace

uint64_t EntropySeed() {
  uint64_t seed = 0;
  Fill(&seed, sizeof(seed));
  return seed == 0 ? 1 : seed;
}

std::string RandomHex(int bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  const auto count = static_cast<size_t>(bytes);
  std::array<unsigned char, kMostBytes> drawn{};
  BATON_CHECK(count <= kMostBytes) << count << " random bytes at once";
  Fill(drawn.data(), count);
  std::string out;
  out.reserve(count * 2);
  for (size_t i = 0; i < count; ++i) {
    out.push_back(kDigits[drawn.at(i) >> 4]);
    out.push_back(kDigits[drawn.at(i) & 15]);
  }
  return out;
}

}  // namespace baton
