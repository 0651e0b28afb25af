// The two kinds of worker; also the two legs of a request.
#ifndef COMMON_TYPES_ROLE_H_
#define COMMON_TYPES_ROLE_H_

#include <cstdint>

namespace baton {

enum class Role : uint8_t { kPrefill, kDecode };

inline const char* RoleName(Role role) { return role == Role::kPrefill ? "prefill" : "decode"; }

}  // namespace baton

#endif  // COMMON_TYPES_ROLE_H_
