#include "common/base/random.h"

#include <random>

namespace baton {

uint64_t EntropySeed() {
  std::random_device device;
  const uint64_t seed = (static_cast<uint64_t>(device()) << 32) | device();
  return seed == 0 ? 1 : seed;
}

std::string RandomHex(int bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::random_device device;
  std::string out;
  out.reserve(static_cast<size_t>(bytes) * 2);
  for (int i = 0; i < bytes; ++i) {
    const unsigned int value = device();
    out.push_back(kDigits[(value >> 4) & 15]);
    out.push_back(kDigits[value & 15]);
  }
  return out;
}

}  // namespace baton
