// A decode service's part of the chain's shell: tickets, and grants on the lease tables of its
// members.
#include <utility>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "services/prefill/chain/chain_shell.h"
#include "services/prefill/chain/grant_messages.h"

namespace baton::prefill {

void ChainShell::Reserve(prefill::Start start, std::shared_ptr<Reservation> reservation) {
  Ask({std::move(start), {nullptr, nullptr, std::move(reservation), nullptr, NowUs()}});
}

void ChainShell::Perform(const GrantKv& action) {
  if (action.member > 0) return SendGrant(action.member, ToProto(action));
  const absl::Status status = options_.grants->Grant(action.grant);
  BATON_CHECK(status.ok()) << status;
}

void ChainShell::Perform(const RevokeKv& action) {
  const absl::Status status = options_.grants->Revoke(action.slot, action.generation);
  BATON_CHECK(status.ok()) << status;
  for (int member = 1; member < options_.place.members(); ++member) {
    SendGrant(member, ToProto(action));
  }
}

void ChainShell::SendGrant(int member, v1::DecodeOrder order) {
  v1::LinkRequest request;
  *request.mutable_order() = std::move(order);
  Send(member, std::move(request));
}

absl::Status ChainShell::OnGrantReport(const links::PassReport& of,
                                       const v1::DecodeReport& report) {
  const int member = of.stage * options_.place.ranks() + of.rank;
  BATON_ASSIGN_OR_RETURN(PlannerEvent event, FromProto(member, report));
  Handle(std::move(event));
  return absl::OkStatus();
}

void ChainShell::Perform(const HandOutTicket& action) {
  const Call& call = calls_.at(action.attempt_id);
  options_.metrics->Observe(Metric::kQueueSeconds,
                            static_cast<double>(NowUs() - call.begun_us) * 1e-6);
  call.reservation->OnTicket(action.ticket);
}

void ChainShell::OnLease(const LeaseEvent& event) {
  options_.grants->Heard(event);
  Handle(KvHeard{0, event});
}

}  // namespace baton::prefill
