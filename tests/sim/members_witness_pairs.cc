// Which pairs are ready, and until when one may come (members_witness.h).
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/members_witness.h"

namespace baton::sim {
namespace {

bool Reaches(const MembersWitness::Member& from, const MembersWitness::Member& to) {
  return from.applied_version >= to.joined_version &&
         !from.unconnected.contains(to.info.instance.incarnation);
}

auto AsTuple(const router::Pair& pair) {
  return std::tie(pair.chain.chain_id, pair.chain.stages, pair.writers, pair.chain.stage0,
                  pair.chain.load, pair.chain.max_prompt_tokens, pair.chain.draining, pair.decode,
                  pair.decode_load, pair.decode_capacity_tokens, pair.max_context_tokens,
                  pair.decode_slots, pair.chain.capacity_tokens, pair.page_size);
}

int64_t TokensOf(const router::WorkerInfo& info) {
  return int64_t{info.page_count} * info.fingerprint.kv_layout.page_size;
}

}  // namespace

const std::vector<router::Pair>& MembersWitness::Pairs() {
  if (std::exchange(pairs_valid_, true)) return pairs_;
  pairs_.clear();
  using Place = std::pair<int, int>;  // Stage and rank.
  std::map<std::string, std::map<Place, const Member*>> chains;
  for (const auto& [id, member] : members_) {
    if (member.info.role != Role::kPrefill) continue;
    chains[member.info.chain_id][{member.info.pp_rank, member.info.tensor_rank.rank}] = &member;
  }
  for (const auto& [chain_id, stages] : chains) {
    const Member& first = *stages.begin()->second;
    const int ranks = first.info.tensor_rank.size;
    if (static_cast<int>(stages.size()) != first.info.pp_size * ranks) continue;
    router::Chain chain;
    chain.chain_id = chain_id;
    chain.stage0 = first.info.instance;
    chain.load = first.load;
    chain.max_prompt_tokens = first.info.max_context_tokens;
    chain.capacity_tokens = TokensOf(first.info);
    std::vector<KvWriter> writers;
    bool ready = true;
    for (const auto& [place, stage] : stages) {
      ready = ready && stage->Serves() && first.applied_version >= stage->joined_version;
      chain.stages.push_back({stage->info.instance, stage->info.layers, {place.second, ranks}});
      if (topology_.WritesKv(place.second)) writers.push_back(chain.stages.back());
      chain.max_prompt_tokens = std::min(chain.max_prompt_tokens, TokensOf(stage->info));
      chain.capacity_tokens = std::min(chain.capacity_tokens, TokensOf(stage->info));
    }
    for (const auto& [id, decode] : members_) {
      if (!ready || decode.info.role != Role::kDecode || !decode.Serves()) continue;
      if (decode.applied_version < decode.joined_version) continue;
      const bool connected =
          std::all_of(stages.begin(), stages.end(), [&decode = decode](const auto& entry) {
            return Reaches(*entry.second, decode) && Reaches(decode, *entry.second);
          });
      if (!connected) continue;
      const int64_t tokens = TokensOf(decode.info);
      pairs_.push_back({chain,
                        decode.info.instance,
                        decode.load,
                        tokens,
                        std::min<int64_t>(decode.info.max_context_tokens, tokens),
                        decode.info.max_running_requests,
                        decode.info.fingerprint.kv_layout.page_size,
                        {},
                        writers});
    }
  }
  return pairs_;
}

void MembersWitness::CheckPairs(const router::Membership& membership) {
  const std::vector<router::Pair>& ready = membership.ReadyPairs();
  const std::vector<router::Pair>& right = Pairs();
  const bool same = std::equal(
      ready.begin(), ready.end(), right.begin(), right.end(),
      [](const router::Pair& a, const router::Pair& b) { return AsTuple(a) == AsTuple(b); });
  if (!same) {
    Complain(absl::StrCat(ready.size(), " pairs are ready, it should be ", right.size(),
                          ", or what is said of them is not so"));
  }
  if (ready.empty() && membership.PairExpectedUntilUs(world_.now_us()) != PairExpectedUntilUs()) {
    Complain("a pair is expected and may not come, or the other way round");
  }
}

int64_t MembersWitness::PairExpectedUntilUs() const {
  const int64_t now_us = world_.now_us();
  const int64_t grace_us = limits_.membership.pair_grace_us;
  int64_t decode_us = -1;
  std::map<std::string, std::map<std::pair<int, int>, int64_t>> ranks;
  std::map<std::string, int> sizes;
  const auto hold = [&](const router::WorkerInfo& info, int64_t changed_us) {
    if (info.role == Role::kDecode) {
      decode_us = std::max(decode_us, changed_us);
      return;
    }
    sizes[info.chain_id] = info.pp_size * info.tensor_rank.size;
    const std::pair place(info.pp_rank, info.tensor_rank.rank);
    int64_t& latest_us = ranks[info.chain_id].try_emplace(place, 0).first->second;
    latest_us = std::max(latest_us, changed_us);
  };
  for (const auto& [id, member] : members_) {
    hold(member.info, member.draining ? now_us : member.changed_us);
  }
  for (const auto& [id, absent] : absent_) {
    if (now_us - absent.lost_us < grace_us) hold(absent.info, absent.lost_us);
  }
  int64_t chain_us = -1;
  for (const auto& [chain_id, held] : ranks) {
    if (static_cast<int>(held.size()) != sizes[chain_id]) continue;
    for (const auto& [rank, changed_us] : held) chain_us = std::max(chain_us, changed_us);
  }
  if (decode_us < 0 || chain_us < 0) return 0;
  const int64_t until_us = std::max(decode_us, chain_us) + grace_us;
  return until_us > now_us ? until_us : 0;
}

}  // namespace baton::sim
