#include "services/prefill/core/neighbours.h"

#include "absl/strings/str_cat.h"
#include "common/base/coverage.h"
#include "common/base/status.h"

namespace baton::prefill {

absl::StatusOr<std::optional<Neighbour>> Neighbours::FindIn(const links::Hello& hello, int member,
                                                            const FindEndpoint& find) {
  if (member < 0 || static_cast<size_t>(member) >= hello.members.size()) return std::nullopt;
  const InstanceRef& instance = hello.members[static_cast<size_t>(member)].instance;
  const std::optional<uint64_t> endpoint = find(instance);
  if (endpoint.has_value()) return Neighbour{*endpoint, instance};
  Covered<"neighbours: one is not connected">();
  return absl::UnavailableError(absl::StrCat(instance.id, " is not connected"));
}

absl::Status Neighbours::Begin(const links::Hello& hello, bool quiet, const FindEndpoint& find) {
  if (!quiet) return absl::UnavailableError("work of the last epoch goes on");
  BATON_ASSIGN_OR_RETURN(auto previous, FindIn(hello, member_ - ranks_, find));
  BATON_ASSIGN_OR_RETURN(auto next, FindIn(hello, member_ + ranks_, find));
  previous_ = std::move(previous);
  next_ = std::move(next);
  return absl::OkStatus();
}

void Neighbours::End() {
  previous_.reset();
  next_.reset();
}

absl::Status Neighbours::Check(const FindEndpoint& find) const {
  for (const std::optional<Neighbour>* neighbour : {&previous_, &next_}) {
    if (!neighbour->has_value() || find((*neighbour)->instance) == (*neighbour)->endpoint) continue;
    Covered<"neighbours: one has gone">();
    const std::string& name = (*neighbour)->instance.id;
    return WithLeg(absl::UnavailableError(absl::StrCat("the connection to ", name, " has gone")),
                   "prefill", name);
  }
  return absl::OkStatus();
}

}  // namespace baton::prefill
