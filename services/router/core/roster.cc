#include "services/router/core/roster.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/kv/head_routes.h"

namespace baton::router {
namespace {

bool Reaches(const Reach::Process& from, const Reach::Process& to) {
  return from.applied_version >= to.joined_version &&
         !std::binary_search(from.unconnected.begin(), from.unconnected.end(), to.incarnation);
}

// With more ranks than KV heads some have copies, which they don't hand over.
std::vector<KvWriter> WritersOf(const std::vector<KvWriter>& stages, int kv_heads,
                                int decode_ranks) {
  const auto sources = SourcesOf(kv_heads, stages.front().tensor_rank.size, decode_ranks);
  BATON_CHECK(sources.ok()) << sources.status();  // CheckWellFormed saw to it.
  std::vector<KvWriter> writers;
  for (const KvWriter& stage : stages) {
    if (std::binary_search(sources->begin(), sources->end(), stage.tensor_rank.rank)) {
      writers.push_back(stage);
    }
  }
  return writers;
}

}  // namespace

void Reach::Add(Process process) {
  summary.last_joined = std::max(summary.last_joined, process.joined_version);
  summary.first_applied = std::min(summary.first_applied, process.applied_version);
  summary.unconnected = summary.unconnected || !process.unconnected.empty();
  processes.push_back(std::move(process));
}

bool Connected(const Reach& a, const Reach& b) {
  if (a.summary.Connects(b.summary)) return true;
  return std::all_of(a.processes.begin(), a.processes.end(), [&b](const Reach::Process& from) {
    return std::all_of(b.processes.begin(), b.processes.end(), [&from](const Reach::Process& to) {
      return Reaches(from, to) && Reaches(to, from);
    });
  });
}

Pair Join(const Side& chain, const Side& decode) {
  Pair pair = decode.pair;
  pair.chain = chain.pair.chain;
  pair.protocol_version = std::min(chain.pair.protocol_version, decode.pair.protocol_version);
  pair.writers = WritersOf(pair.chain.stages, decode.kv_heads, decode.decode_ranks);
  return pair;
}

size_t SideTable::Put(const GridName& name, Side side) {
  auto at = slot_of_.find(name);
  if (at == slot_of_.end()) {
    if (free_.empty()) {
      free_.push_back(sides_.size());
      sides_.emplace_back();
    }
    at = slot_of_.emplace(name, free_.back()).first;
    free_.pop_back();
  }
  Slot& slot = sides_[at->second];
  CountOut(slot);
  slot = {std::move(side), /*used=*/true, /*ready=*/true};
  ++ready_count_;
  ++prompts_[slot.side.pair.chain.max_prompt_tokens];
  ++contexts_[slot.side.pair.max_context_tokens];
  changed_.insert(at->second);
  return at->second;
}

void SideTable::Rest(const GridName& name) {
  const auto at = slot_of_.find(name);
  if (at == slot_of_.end() || !sides_[at->second].ready) return;
  CountOut(sides_[at->second]);
  sides_[at->second].ready = false;
  changed_.insert(at->second);
}

void SideTable::Remove(const GridName& name) {
  const auto at = slot_of_.find(name);
  if (at == slot_of_.end()) return;
  CountOut(sides_[at->second]);
  sides_[at->second] = {};
  changed_.insert(at->second);
  free_.push_back(at->second);
  slot_of_.erase(at);
}

void SideTable::CountOut(const Slot& slot) {
  if (!slot.ready) return;
  --ready_count_;
  Drop(prompts_, slot.side.pair.chain.max_prompt_tokens);
  Drop(contexts_, slot.side.pair.max_context_tokens);
}

void SideTable::Drop(Counts& counts, int64_t number) {
  const auto count = counts.find(number);
  if (--count->second == 0) counts.erase(count);
}

std::vector<size_t> SideTable::TakeChanged() {
  std::vector<size_t> changed(changed_.begin(), changed_.end());
  changed_.clear();
  return changed;
}

bool Roster::HasPair() const {
  bool found = false;
  VisitPairs([&found](size_t, size_t) {
    found = true;
    return false;
  });
  return found;
}

size_t Roster::CountPairs() const {
  size_t pairs = 0;
  VisitPairs([&pairs](size_t, size_t) {
    ++pairs;
    return true;
  });
  return pairs;
}

}  // namespace baton::router
