// Seeded random numbers: the simulation's only source of chance, and counter-based draws for
// sampling. SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
// OOPSLA 2014): 64 bits of state, so a seed in a failure report is all that a replay needs.
#ifndef COMMON_BASE_RANDOM_H_
#define COMMON_BASE_RANDOM_H_

#include <cstdint>
#include <string>

namespace baton {

// One SplitMix64 output for `x`; also a good 64-bit mixer.
constexpr uint64_t Mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    const uint64_t value = Mix64(state_);
    state_ += 0x9e3779b97f4a7c15ULL;
    return value;
  }

  // Uniform in [0, bound); `bound` > 0. The modulo bias is below 2^-32 for bounds under 2^32.
  uint64_t Below(uint64_t bound) { return Next() % bound; }

  // Uniform in [low, high], both included.
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Below(static_cast<uint64_t>(high - low) + 1));
  }

  // Uniform in [0, 1).
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }

  bool Chance(double probability) { return Uniform() < probability; }

 private:
  uint64_t state_;
};

// A seed from the operating system, for incarnation ids and unseeded sampling. Never 0.
uint64_t EntropySeed();

// `bytes` random bytes in hexadecimal, for request ids.
std::string RandomHex(int bytes);

}  // namespace baton

#endif  // COMMON_BASE_RANDOM_H_
