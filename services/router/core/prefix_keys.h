// Prompts as the prediction of what is cached sees them: hashes of their first tokens, up to
// certain positions. Two prompts that begin alike have their first keys in common.
#ifndef SERVICES_ROUTER_CORE_PREFIX_KEYS_H_
#define SERVICES_ROUTER_CORE_PREFIX_KEYS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace baton::router {

// The tokens that `keys` keys cover: 64 each at first, from 1,024 on an eighth of the last power of
// two. So the longest prompt has some 130, and each is known to an eighth of its length.
int PrefixTokens(size_t keys);

// One key for each position within the prompt. Prompts with different salts have none in common.
std::vector<uint64_t> PrefixKeys(std::span<const int32_t> tokens, const std::string& salt);

// The hash of a routing key that a client gave; never 0.
uint64_t RoutingKey(const std::string& text);

}  // namespace baton::router

#endif  // SERVICES_ROUTER_CORE_PREFIX_KEYS_H_
