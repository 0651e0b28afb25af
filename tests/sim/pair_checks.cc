// What is promised of the pair that an attempt begins on: both sides are connected, as far as they
// could tell, and a worker that has just failed is left alone for a moment.
#include "absl/strings/str_cat.h"
#include "tests/sim/decode_process.h"
#include "tests/sim/prefill_process.h"
#include "tests/sim/router_process.h"

namespace baton::sim {
namespace {

// A heartbeat that says so takes far less where nothing disturbs it.
constexpr int64_t kWithdrawnUs = 100'000;
constexpr int64_t kProbationUs = 100'000;

}  // namespace

WorkerMembership* RouterProcess::MembershipOf(const InstanceRef& instance) const {
  const int node = NodeOf(instance.id);
  if (!world_.alive(node) || world_.incarnation(node) != instance.incarnation) return nullptr;
  if (topology_.IsDecode(node)) {
    return &static_cast<DecodeProcess*>(world_.process(node))->membership();
  }
  return &static_cast<PrefillProcess*>(world_.process(node))->membership();
}

// What fails together is one failure: requests that were on their way when the first one broke.
void RouterProcess::NoteFailure(const InstanceRef& decode) {
  const auto [failed, first] = failed_us_.emplace(decode, world_.now_us());
  if (!first && world_.now_us() - failed->second >= kProbationUs) {
    failed->second = world_.now_us();
  }
}

void RouterProcess::CheckPair(const router::Reserve& act) {
  const auto failed = failed_us_.find(act.decode);
  if (failed != failed_us_.end() && world_.now_us() - failed->second < kProbationUs) {
    world_.Violate(absl::StrCat(act.decode.id, " is given a request ",
                                (world_.now_us() - failed->second) / 1000,
                                " ms after it failed one"));
  }
  if (!topology_.undisturbed) return;
  const auto check = [this](const InstanceRef& from, const InstanceRef& to) {
    const WorkerMembership* membership = MembershipOf(from);
    if (membership == nullptr || !membership->MissedFor(to, kWithdrawnUs)) return;
    world_.Violate(absl::StrCat(from.id, " is paired with ", to.id,
                                " though its endpoint has been dead for ", kWithdrawnUs / 1000,
                                " ms"));
  };
  for (const KvWriter& writer : act.writers) {
    check(writer.instance, act.decode);
    check(act.decode, writer.instance);
  }
}

}  // namespace baton::sim
