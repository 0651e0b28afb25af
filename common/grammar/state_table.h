// The deterministic states of a pushdown automaton, made as texts ask for them.
//
// A state is a set of places in the automaton, each with a stack of where to go on behind the rules
// that it is in. Stacks are chains of nodes that are kept once, and so are states: equal ones have
// equal numbers, and where a byte leads to is looked up after the first time.
#ifndef COMMON_GRAMMAR_STATE_TABLE_H_
#define COMMON_GRAMMAR_STATE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/node_hash_map.h"
#include "common/grammar/automaton.h"

namespace baton::grammar {

using StackId = uint32_t;
inline constexpr StackId kBottom = 0;   // Behind it the whole text ends.
inline constexpr StackId kUnknown = 1;  // What follows is not known.

struct Place {
  StateId state = 0;
  StackId stack = kBottom;
  auto operator<=>(const Place&) const = default;
};

// One thread at a time. Only grows: its holder makes a new one when it is too large.
class StateTable {
 public:
  static constexpr int32_t kDead = -1;  // No text goes on from here.
  // More places in one state are an error of the grammar's: it is too ambiguous.
  static constexpr size_t kMaxPlaces = 1000;
  static constexpr size_t kMaxStates = 1 << 15;

  // `automaton` must outlive it.
  explicit StateTable(const Automaton& automaton);

  // The state that has the places and what is reached from them without a byte.
  int32_t Find(std::vector<Place> reached);

  int32_t Step(int32_t state, uint8_t byte) {
    if (state == kDead) return kDead;
    int32_t& next = steps_[static_cast<size_t>(state) * classes_ + automaton_.class_of[byte]];
    return next == kNotMade ? MakeStep(state, byte) : next;
  }
  int32_t Walk(int32_t state, std::string_view text) {
    for (size_t i = 0; i < text.size() && state != kDead; ++i) {
      state = Step(state, static_cast<uint8_t>(text[i]));
    }
    return state;
  }

  // Those from which a byte leads on, ascending.
  std::span<const Place> PlacesOf(int32_t state) const { return Of(state).places; }
  bool EndsAt(int32_t state) const { return Of(state).ends; }  // The whole text may.
  // Its text may end behind which kUnknown stands.
  bool LeavesAt(int32_t state) const { return Of(state).leaves; }

  // What stands on top of a stack, and what is beneath.
  struct Frame {
    StackId beneath = kBottom;
    StateId back_to = 0;
  };
  const Frame& FrameOf(StackId stack) const { return frames_[stack]; }
  // The same state in another table of the automaton.
  int32_t CopyTo(StateTable& to, int32_t state) const;

  // Whether a limit was met: what was called dead since may not be.
  bool overflowed() const { return overflowed_; }
  size_t bytes() const { return bytes_; }
  size_t size() const { return keys_.size(); }
  // How many places have been looked at to make states.
  int64_t places_seen() const { return places_seen_; }

 private:
  static constexpr int32_t kNotMade = -2;

  struct Key {
    std::vector<Place> places;
    bool ends = false;
    bool leaves = false;
    bool operator==(const Key&) const = default;
    template <typename H>
    friend H AbslHashValue(H h, const Key& key) {
      for (const Place& place : key.places) h = H::combine(std::move(h), place.state, place.stack);
      return H::combine(std::move(h), key.ends, key.leaves);
    }
  };

  const Key& Of(int32_t state) const { return *keys_[static_cast<size_t>(state)]; }
  StackId Push(StackId beneath, StateId back_to);
  int32_t Keep(Key key);
  int32_t MakeStep(int32_t state, uint8_t byte);

  const Automaton& automaton_;
  const size_t classes_;
  std::vector<Frame> frames_;
  absl::flat_hash_map<std::pair<StackId, StateId>, StackId> stacks_;
  absl::node_hash_map<Key, int32_t> ids_;
  std::vector<const Key*> keys_;
  std::vector<int32_t> steps_;  // [state][class]
  size_t bytes_ = 0;
  int64_t places_seen_ = 0;
  bool overflowed_ = false;
};

}  // namespace baton::grammar

#endif  // COMMON_GRAMMAR_STATE_TABLE_H_
