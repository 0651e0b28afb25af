#include "tests/sim/members_witness.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace baton::sim {
namespace {

template <typename T>
const T* FindAction(const std::vector<router::Action>& actions) {
  for (const router::Action& action : actions) {
    if (const T* found = std::get_if<T>(&action)) return found;
  }
  return nullptr;
}

// Whether the one holds nothing that the other holds otherwise.
bool SameWeights(const ModelFingerprint& a, const ModelFingerprint& b) {
  const auto same = [](uint64_t one, uint64_t other) {
    return one == 0 || other == 0 || one == other;
  };
  return same(a.embedding_hash, b.embedding_hash) && same(a.head_hash, b.head_hash) &&
         std::all_of(a.layer_hashes.begin(), a.layer_hashes.end(), [&b](const auto& layer) {
           const auto other = b.layer_hashes.find(layer.first);
           return other == b.layer_hashes.end() || other->second == layer.second;
         });
}

// Neighbours of one chain fit by construction; what differs is drawn (Topology::stranger).
bool Fit(const router::WorkerInfo& a, const router::WorkerInfo& b) {
  const bool same_group =
      a.role == Role::kPrefill
          ? a.chain_id == b.chain_id && a.pp_rank == b.pp_rank
          : !a.decode_id.empty() && a.decode_id == b.decode_id && a.pp_rank == b.pp_rank;
  const bool same_place = a.role == b.role && same_group && a.tensor_rank == b.tensor_rank;
  return !same_place && SameWeights(a.fingerprint, b.fingerprint);
}

bool IsApplicant(const InstanceRef& instance, const router::Membership& membership) {
  const auto found = membership.applicants().find(instance.id);
  return found != membership.applicants().end() && found->second.info.instance == instance;
}

}  // namespace

void MembersWitness::Complain(const std::string& what) {
  world_.Violate(absl::StrCat(name_, ": ", what));
}

const MembersWitness::Member* MembersWitness::Find(const InstanceRef& instance) const {
  const auto found = members_.find(instance.id);
  const bool here = found != members_.end() && found->second.info.instance == instance;
  return here ? &found->second : nullptr;
}

MembersWitness::Member* MembersWitness::Of(const InstanceRef& instance) {
  return const_cast<Member*>(Find(instance));  // NOLINT: its own.
}

// ---- Events ----

std::vector<MembersWitness::Lost> MembersWitness::Take(const router::Event& event,
                                                       const std::vector<router::Action>& actions,
                                                       const router::Membership& membership) {
  std::vector<Lost> lost;
  asks_due_.clear();
  ends_due_.clear();
  relisted_.clear();
  if (const auto* asks = std::get_if<router::LeaseAsked>(&event)) {
    HearAsk(*asks, actions, membership, lost);
  } else if (const auto* beat = std::get_if<router::HeartbeatReceived>(&event)) {
    HearHeartbeat(*beat, actions, lost);
  } else if (const auto* broken = std::get_if<router::LeaseBroken>(&event)) {
    const auto call = calls_.extract(broken->rpc_id);
    if (!call.empty() && call.mapped().heard) Suspect(call.mapped().worker);
  } else if (const auto* drain = std::get_if<router::DrainRequested>(&event)) {
    HearDrain(*drain, actions);
  } else if (std::holds_alternative<router::Tick>(event)) {
    HearTick(lost);
  }
  return lost;
}

std::optional<InstanceRef> MembersWitness::WorkerOf(uint64_t rpc_id) const {
  const auto call = calls_.find(rpc_id);
  if (call == calls_.end()) return std::nullopt;
  return call->second.worker;
}

void MembersWitness::HearAsk(const router::LeaseAsked& event,
                             const std::vector<router::Action>& actions,
                             const router::Membership& membership, std::vector<Lost>& lost) {
  const auto* answer = FindAction<router::AnswerLease>(actions);
  const InstanceRef& instance = event.worker.instance;
  if (answer == nullptr || answer->rpc_id != event.rpc_id || answer->instance != instance) {
    return Complain("who asks for a lease has no answer, or another's");
  }
  if (event.rpc_id == kOfIntruder) return HearIntruder(instance, membership);
  const bool says_so =
      std::count(event.held_by.begin(), event.held_by.end(), limits_.incarnation) > 0;
  const bool held = std::any_of(calls_.begin(), calls_.end(), [&](const auto& call) {
    return call.second.worker == instance && (says_so || event.call_number <= call.second.number);
  });
  if (held) {
    if (!absl::IsAlreadyExists(answer->status)) Complain("a worker is held by two calls");
    return;
  }
  Hear(event, *answer, membership, lost);
  if (!answer->status.ok()) return;
  EndCallOf(instance);  // The later one holds.
  calls_[event.rpc_id] = {instance, event.call_number};
}

void MembersWitness::HearHeartbeat(const router::HeartbeatReceived& event,
                                   const std::vector<router::Action>& actions,
                                   std::vector<Lost>& lost) {
  const auto* answer = FindAction<router::AnswerHeartbeat>(actions);
  const std::optional<InstanceRef> sender = WorkerOf(event.rpc_id);
  if (!sender.has_value()) {
    if (answer != nullptr) Complain("a heartbeat on a call that is over is answered");
    return;
  }
  if (answer == nullptr || answer->rpc_id != event.rpc_id) {
    return Complain("a heartbeat has no answer");
  }
  Hear(event, *sender);
  calls_.at(event.rpc_id).heard = true;
  CheckAnswer(*answer, *sender);
  if (!event.leaving) return;
  const auto found = members_.find(sender->id);
  Remember(found->second.info);
  Lose(found, /*left=*/true, lost);
}

void MembersWitness::HearDrain(const router::DrainRequested& event,
                               const std::vector<router::Action>& actions) {
  const auto found = members_.find(event.instance_id);
  const auto* reply = FindAction<router::ReplyDrain>(actions);
  if (reply == nullptr || reply->status.ok() != (found != members_.end())) {
    Complain("a drain is answered wrongly");
  }
  if (found == members_.end()) return;
  Member& member = found->second;
  member.drain_asked = true;
  if (!std::exchange(member.draining, true)) member.changed_us = world_.now_us();
  for (const auto& [rpc, call] : calls_) {
    if (call.worker == member.info.instance) asks_due_.insert(rpc);
  }
  pairs_valid_ = false;
}

void MembersWitness::EndCallOf(const InstanceRef& instance) {
  std::erase_if(calls_, [&](const auto& call) {
    if (call.second.worker != instance) return false;
    ends_due_.insert(call.first);
    return true;
  });
}

void MembersWitness::Hear(const router::LeaseAsked& event, const router::AnswerLease& reply,
                          const router::Membership& membership, std::vector<Lost>& lost) {
  CheckRefusal(event, reply, membership);
  if (reply.status.ok() && TwinLives(event.worker.instance)) {
    Complain(event.worker.instance.id + " takes the place of another process that lives");
  }
  Member* known = Of(event.worker.instance);
  if (known != nullptr && known->info == event.worker) {
    if (!reply.status.ok()) Complain("a member that asks again is refused");
    known->lease_until_us = world_.now_us() + limits_.membership.lease_us;
    known->excused = false;
    return;
  }
  const std::vector<router::Worker> now_here = membership.Workers();
  const auto stays = [&now_here](const Member& member) {
    return std::any_of(now_here.begin(), now_here.end(), [&member](const router::Worker& w) {
      return w.info.instance == member.info.instance;
    });
  };
  std::vector<const router::Worker*> joined;
  for (const router::Worker& worker : now_here) {
    if (Find(worker.info.instance) == nullptr) joined.push_back(&worker);
  }
  for (auto member = members_.begin(); member != members_.end();) {
    const auto next = std::next(member);
    if (!stays(member->second)) {
      const bool in_the_way = std::any_of(joined.begin(), joined.end(), [&](const auto* worker) {
        return worker->info.instance.id == member->first || !Fit(worker->info, member->second.info);
      });
      if (!in_the_way) Complain(member->first + " is lost to workers that it fits");
      if (!reply.status.ok()) Complain("a refused worker costs others their place");
      Lose(member, /*left=*/false, lost);  // Its place is taken, or not for the likes of it.
    }
    member = next;
  }
  for (const router::Worker* worker : joined) {
    Join(*worker, worker->info.instance == event.worker.instance);
  }
  if (reply.status.ok() != (Find(event.worker.instance) != nullptr)) {
    Complain(event.worker.instance.id + " is told that it is a member, or not, and it is not so");
  }
}

// Another process of the name is a member, and nothing says that it has died.
bool MembersWitness::TwinLives(const InstanceRef& instance) const {
  const auto found = members_.find(instance.id);
  return found != members_.end() && found->second.info.instance != instance &&
         !found->second.suspect;
}

// The sender has checked the answer. Like any applicant it joins with others that it fits, if they
// come before it is forgotten.
void MembersWitness::HearIntruder(const InstanceRef& instance,
                                  const router::Membership& membership) {
  if (IsApplicant(instance, membership)) intruders_[instance] = world_.now_us();
}

void MembersWitness::CheckRefusal(const router::LeaseAsked& event, const router::AnswerLease& reply,
                                  const router::Membership& membership) {
  const InstanceRef& instance = event.worker.instance;
  const auto before = refused_.find(instance);
  if (reply.status.ok()) {
    if (reply.repeated) Complain("a worker is taken as it was refused");
    return;
  }
  if (!members_.contains(instance.id) && IsFull()) {  // And it is no applicant.
    if (!absl::IsResourceExhausted(reply.status) || reply.repeated) {
      Complain(absl::StrCat(instance.id, " finds no room and hears ", reply.status.ToString()));
    }
    return;
  }
  const bool misfit = std::any_of(members_.begin(), members_.end(), [&](const auto& entry) {
    return entry.first != instance.id && !Fit(entry.second.info, event.worker);
  });
  if ((!misfit && !TwinLives(instance)) || !absl::IsFailedPrecondition(reply.status)) {
    Complain(absl::StrCat(instance.id, " is refused without a reason: ", reply.status.ToString()));
  }
  // As many applicants are known as members are taken, intruders among them.
  const bool known = IsApplicant(instance, membership);
  const auto most = static_cast<size_t>(limits_.membership.max_workers);
  if (membership.applicants().size() > most)
    Complain("more applicants are known than there may be");
  if (!known && membership.applicants().size() < most) {
    Complain(instance.id + " is refused and forgotten, and there is room for it");
  }
  const bool same = before != refused_.end() && before->second.status == reply.status;
  const bool lately = before != refused_.end() && before->second.known &&
                      world_.now_us() - before->second.at_us < limits_.membership.lease_us;
  if (reply.repeated ? !same : same && lately) {
    Complain("a refusal that is said again is not told from the first");
  }
  // One applicant of a name is known: what a former life has said late counts as another's.
  std::erase_if(refused_, [&](const auto& entry) { return entry.first.id == instance.id; });
  refused_[instance] = {reply.status, world_.now_us(), known};
}

void MembersWitness::Join(const router::Worker& worker, bool asks) {
  Member member;
  member.info = worker.info;
  member.changed_us = world_.now_us();
  int64_t asked_us = world_.now_us();
  if (const auto refused = refused_.find(worker.info.instance);
      !asks && refused != refused_.end()) {
    asked_us = refused->second.at_us;
  } else if (const auto intruder = intruders_.find(worker.info.instance);
             !asks && intruder != intruders_.end()) {
    asked_us = intruder->second;
    intruders_.erase(intruder);
  } else if (!asks) {
    Complain(worker.info.instance.id + " joins without having asked");
  }
  member.lease_until_us = asked_us + limits_.membership.lease_us;
  if (member.lease_until_us <= world_.now_us()) {
    Complain(worker.info.instance.id + " joins and has not asked for a lease's time");
  }
  absent_.erase(worker.info.instance.id);
  std::erase_if(refused_,  // The router forgets the applicant of a name that joins.
                [&](const auto& entry) { return entry.first.id == worker.info.instance.id; });
  members_[worker.info.instance.id] = std::move(member);
  Relisted(worker.info);
  pairs_valid_ = false;
}

void MembersWitness::Hear(const router::HeartbeatReceived& event, const InstanceRef& sender) {
  Member* member = Of(sender);
  if (member == nullptr) return Complain("a call goes on whose worker is no member");
  const std::set<uint64_t> linked(event.linked.begin(), event.linked.end());
  member->lease_until_us = world_.now_us() + limits_.membership.lease_us;
  member->excused = false;
  if (member->ready != event.ready || member->linked != linked) {
    member->changed_us = world_.now_us();
  }
  member->suspect = false;
  member->ready = event.ready;
  member->load = event.load;
  member->linked = linked;
  if ((event.draining || event.leaving) && !std::exchange(member->draining, true)) {
    member->changed_us = world_.now_us();
  }
  pairs_valid_ = false;
}

// Whatever is heard first after a pause shows it, and members have most likely spoken meanwhile.
bool MembersWitness::NoticePause() {
  const int64_t now_us = world_.now_us();
  if (last_tick_us_ == kNeverUs) last_tick_us_ = now_us;
  if (now_us - last_tick_us_ <= 2 * limits_.beat_us) return false;
  last_tick_us_ = now_us;
  ++pauses_total_;
  for (auto& [id, member] : members_) {
    if (std::exchange(member.excused, true)) continue;
    member.lease_until_us = std::max(member.lease_until_us, now_us + limits_.membership.lease_us);
  }
  return true;
}

void MembersWitness::HearTick(std::vector<Lost>& lost) {
  const int64_t now_us = world_.now_us();
  last_tick_us_ = now_us;
  for (auto member = members_.begin(); member != members_.end();) {
    const auto next = std::next(member);
    Member& m = member->second;
    if (m.probation_until_us != 0 && m.probation_until_us <= now_us) {
      m.probation_until_us = 0;
      pairs_valid_ = false;
    }
    if (m.lease_until_us <= now_us) {
      ++leases_expired_total_;
      Remember(m.info);
      Lose(member, /*left=*/false, lost);
    }
    member = next;
  }
  std::erase_if(unconnected_until_us_, [&](const auto& entry) {
    if (now_us < entry.second) return false;
    pairs_valid_ = false;
    return true;
  });
}

// Keeps the workers lost last, at most as many as may be members.
void MembersWitness::Remember(const router::WorkerInfo& info) {
  absent_[info.instance.id] = {info, world_.now_us()};
  if (static_cast<int>(absent_.size()) <= limits_.membership.max_workers) return;
  auto first = absent_.begin();
  for (auto other = absent_.begin(); other != absent_.end(); ++other) {
    if (other->second.lost_us < first->second.lost_us) first = other;
  }
  absent_.erase(first);
}

void MembersWitness::Lose(Members::iterator member, bool left, std::vector<Lost>& lost) {
  const InstanceRef instance = member->second.info.instance;
  EndCallOf(instance);
  Relisted(member->second.info);
  lost.push_back({std::move(member->second), left});
  members_.erase(member);
  pairs_valid_ = false;
}

void MembersWitness::Suspect(const InstanceRef& instance) {
  Member* member = Of(instance);
  if (member == nullptr || std::exchange(member->suspect, true)) return;
  member->changed_us = world_.now_us();
  for (const auto& [rpc, call] : calls_) {
    if (call.worker == instance) asks_due_.insert(rpc);
  }
  pairs_valid_ = false;
}

void MembersWitness::Failed(const InstanceRef& instance) {
  Member* member = Of(instance);
  if (member == nullptr) return;
  if (member->probation_until_us == 0) {
    int64_t probation_us = limits_.membership.first_probation_us;
    for (int i = 0; i < std::min(member->failures, 30); ++i) probation_us *= 2;
    ++member->failures;
    member->probation_until_us =
        world_.now_us() + std::min(probation_us, limits_.membership.longest_probation_us);
    pairs_valid_ = false;
  }
  Suspect(instance);
}

void MembersWitness::Served(const InstanceRef& instance) {
  Member* member = Of(instance);
  if (member == nullptr) return;
  if (member->failures > 0) member->probation_until_us = 0;
  member->failures = 0;
  pairs_valid_ = false;
}

void MembersWitness::CouldNotConnect(const router::Pair& pair) {
  for (const InstanceRef& end : {pair.chain.stage0, pair.decode}) {
    if (Member* member = Of(end)) member->changed_us = world_.now_us();
  }
  unconnected_until_us_[{pair.chain.stage0.incarnation, pair.decode.incarnation}] =
      world_.now_us() + limits_.membership.unconnected_us;
  pairs_valid_ = false;
}

}  // namespace baton::sim
