// Who speaks: one life of one process, and the version of what it says.
#ifndef COMMON_TYPES_INSTANCE_H_
#define COMMON_TYPES_INSTANCE_H_

#include <compare>
#include <cstdint>
#include <string>

namespace baton {

// Version of all that workers say to one another: proto/ and the data plane's headers. Workers of
// different versions are refused at join.
inline constexpr uint32_t kProtocolVersion = 2;

// One life of one process: a restart keeps `id` and draws a new `incarnation` (never 0).
struct InstanceRef {
  std::string id;
  uint64_t incarnation = 0;
  auto operator<=>(const InstanceRef&) const = default;
};

}  // namespace baton

#endif  // COMMON_TYPES_INSTANCE_H_
