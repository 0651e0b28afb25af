#include "services/router/core/prefix_keys.h"

#include <algorithm>
#include <bit>

#include "common/base/random.h"

namespace baton::router {
namespace {

constexpr size_t kStep = 64;
constexpr size_t kEvenSteps = 16;  // Before steps grow.
constexpr size_t kStepsOfOctave = 8;

uint64_t HashOf(const std::string& text) {
  uint64_t hash = Mix64(text.size());
  for (const char byte : text) hash = Mix64(hash ^ static_cast<unsigned char>(byte));
  return hash;
}

}  // namespace

int PrefixTokens(size_t keys) {
  if (keys <= kEvenSteps) return static_cast<int>(keys * kStep);
  const size_t octave = (keys - kEvenSteps - 1) / kStepsOfOctave;
  const size_t step = (keys - kEvenSteps - 1) % kStepsOfOctave + 1;
  const size_t base = (kStep * kEvenSteps) << octave;
  return static_cast<int>(base + step * (base / kStepsOfOctave));
}

std::vector<uint64_t> PrefixKeys(std::span<const int32_t> tokens, const std::string& salt) {
  std::vector<uint64_t> keys;
  uint64_t hash = HashOf(salt);
  size_t next = kStep;
  for (size_t i = 0; i < tokens.size(); ++i) {
    hash = Mix64(hash ^ static_cast<uint32_t>(tokens[i]));
    if (i + 1 < next) continue;
    keys.push_back(hash);
    next = static_cast<size_t>(PrefixTokens(keys.size() + 1));
  }
  return keys;
}

uint64_t RoutingKey(const std::string& text) { return std::max<uint64_t>(1, HashOf(text)); }

}  // namespace baton::router
