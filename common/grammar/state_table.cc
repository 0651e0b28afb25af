#include "common/grammar/state_table.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"

namespace baton::grammar {
namespace {

constexpr size_t kMaxBytes = 32 << 20;
constexpr size_t kMaxReached = 1 << 14;  // Places that one step looks at.

}  // namespace

StateTable::StateTable(const Automaton& automaton)
    : automaton_(automaton), classes_(static_cast<size_t>(automaton.class_count)), frames_(2) {}

StackId StateTable::Push(StackId beneath, StateId back_to) {
  if (back_to == CallEdge::kTail) return beneath;
  const auto [it, added] =
      stacks_.try_emplace({beneath, back_to}, static_cast<StackId>(frames_.size()));
  if (added) {
    frames_.push_back({beneath, back_to});
    bytes_ += sizeof(Frame) + 24;
  }
  return it->second;
}

int32_t StateTable::Find(std::vector<Place> reached) {
  Key key;
  // Sets are small as a rule: a list is faster than a hash table.
  std::sort(reached.begin(), reached.end());
  reached.erase(std::unique(reached.begin(), reached.end()), reached.end());
  absl::flat_hash_set<std::pair<StateId, StackId>> seen;
  const auto add = [&](Place place) {
    if (seen.empty()) {
      for (const Place& known : reached) seen.emplace(known.state, known.stack);
    }
    if (seen.emplace(place.state, place.stack).second) reached.push_back(place);
  };
  for (size_t i = 0; i < reached.size(); ++i) {
    const Place place = reached[i];
    const Automaton::State& state = automaton_.states[static_cast<size_t>(place.state)];
    if (state.edges_count > 0) key.places.push_back(place);
    for (const CallEdge& call : automaton_.CallsOf(place.state)) {
      add({call.start, Push(place.stack, call.to)});
    }
    if (!state.accepts) continue;
    if (place.stack == kBottom) {
      key.ends = true;
    } else if (place.stack == kUnknown) {
      key.leaves = true;
    } else {
      const Frame frame = frames_[place.stack];
      add({frame.back_to, frame.beneath});
    }
    if (reached.size() > kMaxReached) break;
  }
  places_seen_ += 3 * static_cast<int64_t>(reached.size());  // Each is looked up.
  if (key.places.empty() && !key.ends && !key.leaves) return kDead;
  if (key.places.size() > kMaxPlaces || reached.size() > kMaxReached) {
    overflowed_ = true;
    return kDead;
  }
  std::sort(key.places.begin(), key.places.end());
  return Keep(std::move(key));
}

int32_t StateTable::Keep(Key key) {  // NOLINT(performance-unnecessary-value-param): is moved.
  if (const auto it = ids_.find(key); it != ids_.end()) return it->second;
  if (keys_.size() >= kMaxStates || bytes_ > kMaxBytes) {
    overflowed_ = true;
    return kDead;
  }
  const auto id = static_cast<int32_t>(keys_.size());
  bytes_ += key.places.size() * sizeof(Place) + classes_ * sizeof(int32_t) + sizeof(Key) + 32;
  keys_.push_back(&ids_.emplace(std::move(key), id).first->first);
  steps_.resize(steps_.size() + classes_, kNotMade);
  return id;
}

int32_t StateTable::MakeStep(int32_t state, uint8_t byte) {
  std::vector<Place> reached;
  places_seen_ += static_cast<int64_t>(Of(state).places.size());
  for (const Place& place : Of(state).places) {
    for (const ByteEdge& edge : automaton_.EdgesOf(place.state)) {
      if (edge.low <= byte && byte <= edge.high) reached.push_back({edge.to, place.stack});
    }
  }
  const int32_t next = reached.empty() ? kDead : Find(std::move(reached));
  steps_[static_cast<size_t>(state) * classes_ + automaton_.class_of[byte]] = next;
  return next;
}

int32_t StateTable::CopyTo(StateTable& to, int32_t state) const {
  if (state == kDead) return kDead;
  Key copy = Of(state);
  for (Place& place : copy.places) {
    std::vector<StateId> frames;
    StackId stack = place.stack;
    for (; stack != kBottom && stack != kUnknown; stack = frames_[stack].beneath) {
      frames.push_back(frames_[stack].back_to);
    }
    for (size_t i = frames.size(); i-- > 0;) stack = to.Push(stack, frames[i]);
    place.stack = stack;
  }
  std::sort(copy.places.begin(), copy.places.end());
  return to.Keep(std::move(copy));
}

}  // namespace baton::grammar
