#include "services/router/core/policies/least.h"

namespace baton::router {

size_t PickByLeastLoad(std::span<const Candidate> candidates) { return Least(candidates, LoadOf); }

}  // namespace baton::router
