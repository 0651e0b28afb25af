// Which pairs are ready, and until when one may come (members_witness.h).
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/members_witness.h"

namespace baton::sim {
namespace {

auto AsTuple(const router::Pair& pair) {
  return std::tie(pair.chain.chain_id, pair.chain.stages, pair.writers, pair.chain.stage0,
                  pair.chain.max_prompt_tokens, pair.chain.draining, pair.decode, pair.followers,
                  pair.decode_capacity_tokens, pair.max_context_tokens, pair.decode_slots,
                  pair.chain.capacity_tokens, pair.page_size, pair.reserved_tokens);
}

size_t SizeOf(const router::WorkerInfo& info) {
  return static_cast<size_t>(info.pp_size) * static_cast<size_t>(info.tensor_rank.size);
}

int64_t TokensOf(const router::WorkerInfo& info) {
  return int64_t{info.page_count} * info.fingerprint.kv_layout.page_size;
}

}  // namespace

std::string MembersWitness::GroupOf(const router::WorkerInfo& info) {
  if (info.role == Role::kPrefill) return "chain " + info.chain_id;
  return info.decode_id.empty() ? "process " + info.instance.id : "service " + info.decode_id;
}

int MembersWitness::UsablePages(const router::WorkerInfo& info) const {
  int pages = info.page_count;
  for (const auto& [id, member] : members_) {
    const router::WorkerInfo& other = member.info;
    if (info.decode_id.empty() || other.decode_id != info.decode_id) continue;
    pages = std::min(pages, other.page_count);
  }
  return pages;
}

const std::vector<router::Pair>& MembersWitness::Pairs() {
  if (std::exchange(pairs_valid_, true)) return pairs_;
  pairs_.clear();
  using Place = std::pair<int, int>;  // Stage and rank.
  std::map<std::string, std::map<Place, const Member*>> chains;
  std::map<std::string, std::map<Place, const Member*>> services;
  for (const auto& [id, member] : members_) {
    const bool prefills = member.info.role == Role::kPrefill;
    auto& groups = prefills ? chains : services;
    groups[GroupOf(member.info)][{member.info.pp_rank, member.info.tensor_rank.rank}] = &member;
  }
  for (const auto& [chain_name, stages] : chains) {
    const Member& first = *stages.begin()->second;
    const int ranks = first.info.tensor_rank.size;
    if (stages.size() != SizeOf(first.info)) continue;
    router::Chain chain;
    chain.chain_id = first.info.chain_id;
    chain.stage0 = first.info.instance;
    chain.max_prompt_tokens = first.info.max_context_tokens;
    chain.capacity_tokens = TokensOf(first.info);
    std::vector<KvWriter> writers;
    bool ready = true;
    for (const auto& [place, stage] : stages) {
      ready = ready && stage->Serves();
      chain.stages.push_back({stage->info.instance, stage->info.layers, {place.second, ranks}});
      if (topology_.WritesKv(place.second)) writers.push_back(chain.stages.back());
      chain.max_prompt_tokens = std::min(chain.max_prompt_tokens, TokensOf(stage->info));
      chain.capacity_tokens = std::min(chain.capacity_tokens, TokensOf(stage->info));
    }
    if (!ready || !CanServe(stages)) continue;
    if (first.info.decodes) {  // With itself.
      pairs_.push_back({chain,
                        chain.stage0,
                        chain.capacity_tokens,
                        chain.max_prompt_tokens,
                        first.info.max_running_requests,
                        first.info.fingerprint.kv_layout.page_size,
                        {},
                        {}});
      continue;
    }
    for (const auto& [name, ranks] : services) {
      if (CanServe(ranks)) AddPair(chain, writers, ranks);
    }
  }
  return pairs_;
}

// Every process serves, and the first one links these lives of them.
bool MembersWitness::CanServe(const Ranks& ranks) {
  const Member& first = *ranks.begin()->second;
  if (ranks.size() != SizeOf(first.info)) return false;
  return std::all_of(ranks.begin(), ranks.end(), [&first, &ranks](const auto& entry) {
    return entry.second->Serves() &&
           (ranks.size() == 1 || first.linked.contains(entry.second->info.instance.incarnation));
  });
}

void MembersWitness::AddPair(const router::Chain& chain, const std::vector<KvWriter>& writers,
                             const Ranks& ranks) {
  const Member& first = *ranks.begin()->second;
  const std::pair ends(chain.stage0.incarnation, first.info.instance.incarnation);
  if (unconnected_until_us_.contains(ends)) return;
  int64_t tokens = TokensOf(first.info);
  std::vector<InstanceRef> followers;
  for (const auto& [place, decode] : ranks) {
    tokens = std::min(tokens, TokensOf(decode->info));
    if (decode != &first) followers.push_back(decode->info.instance);
  }
  pairs_.push_back({chain, first.info.instance, tokens,
                    std::min<int64_t>(first.info.max_context_tokens, tokens),
                    first.info.max_running_requests, first.info.fingerprint.kv_layout.page_size,
                    std::move(followers), writers});
  pairs_.back().reserved_tokens = first.info.reserved_decode_tokens;
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
  std::map<std::string, std::map<std::pair<int, int>, int64_t>> places;
  std::map<std::string, router::WorkerInfo> shapes;
  const auto hold = [&](const router::WorkerInfo& info, int64_t changed_us) {
    const std::string group = GroupOf(info);
    shapes.emplace(group, info);
    const std::pair place(info.pp_rank, info.tensor_rank.rank);
    int64_t& latest_us = places[group].try_emplace(place, 0).first->second;
    latest_us = std::max(latest_us, changed_us);
  };
  for (const auto& [id, member] : members_) {
    hold(member.info, member.draining ? now_us : member.changed_us);
  }
  for (const auto& [id, absent] : absent_) {
    if (now_us - absent.lost_us < grace_us) hold(absent.info, absent.lost_us);
  }
  int64_t chain_us = -1;
  int64_t decode_us = -1;
  int64_t colocated_us = -1;
  for (const auto& [group, held] : places) {
    const router::WorkerInfo& shape = shapes.at(group);
    if (held.size() != SizeOf(shape)) continue;
    int64_t& whole_us = shape.decodes                  ? colocated_us
                        : shape.role == Role::kPrefill ? chain_us
                                                       : decode_us;
    for (const auto& [place, changed_us] : held) whole_us = std::max(whole_us, changed_us);
  }
  int64_t latest_us = colocated_us;
  if (decode_us >= 0 && chain_us >= 0) latest_us = std::max({latest_us, decode_us, chain_us});
  if (latest_us < 0) return 0;
  const int64_t until_us = latest_us + grace_us;
  return until_us > now_us ? until_us : 0;
}

}  // namespace baton::sim
