// Turns exceptions of libraries (c10::Error, std::bad_alloc) into statuses.
#ifndef COMMON_ENGINE_GUARD_H_
#define COMMON_ENGINE_GUARD_H_

#include <exception>
#include <new>

#include "absl/status/status.h"

namespace baton {

// Calls `body`, which returns a Status or StatusOr, and returns its result.
template <typename Body>
auto GuardLibraries(const Body& body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("the executor is out of memory");
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

}  // namespace baton

#endif  // COMMON_ENGINE_GUARD_H_
