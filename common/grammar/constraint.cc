#include "common/grammar/constraint.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"

namespace baton::grammar {
namespace {

constexpr size_t kMaxTableBytes = 8 << 20;
constexpr size_t kMaxLocalBytes = 12 << 20;
constexpr size_t kMaxMaskBytes = 8 << 20;
// Masks of longer runs are made from the one of so many characters.
constexpr int kLongestKeptRun = 24;
// Nodes and places that a mask looks at, at some 10 ns each: place by place, then as a whole.
constexpr int64_t kWorkByPlaces = 1 << 20;
constexpr int64_t kWorkAsWhole = 3 << 19;

void Set(std::vector<uint64_t>& words, int32_t token) {
  const auto at = static_cast<size_t>(token);
  words[at / 64] |= uint64_t{1} << (at % 64);
}

void Unite(std::vector<uint64_t>& words, const std::vector<uint64_t>& more) {
  for (size_t i = 0; i < words.size(); ++i) words[i] |= more[i];
}

absl::Status TooAmbiguous() {
  return absl::InvalidArgumentError(
      "the grammar is too ambiguous: too many of its places fit the text");
}

}  // namespace

Constraint::Constraint(Automaton automaton, std::shared_ptr<const Vocabulary> vocabulary)
    : automaton_(std::move(automaton)),
      vocabulary_(std::move(vocabulary)),
      words_((vocabulary_->size() + 63) / 64) {
  MutexLock lock(&mutex_);
  Renew();
}

void Constraint::Renew() const {
  if (table_ != nullptr) places_seen_ += table_->places_seen();
  table_ = std::make_shared<StateTable>(automaton_);
  masks_.clear();
}

void Constraint::Adopt(TextState& text) const {
  const bool full = table_->size() > StateTable::kMaxStates / 2 || table_->bytes() > kMaxTableBytes;
  if (full || table_->overflowed()) Renew();
  if (text.table_ == table_) return;
  const std::shared_ptr<StateTable> before = std::exchange(text.table_, table_);
  text.state_ = before == nullptr ? table_->Find({{automaton_.start, kBottom}})
                                  : before->CopyTo(*table_, text.state_);
}

TextState Constraint::Begin() const {
  MutexLock lock(&mutex_);
  TextState text;
  Adopt(text);
  return text;
}

absl::Status Constraint::Append(TextState& text, int32_t token) const {
  const std::string_view bytes = vocabulary_->BytesOf(token);
  if (bytes.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("no text has the token ", token));
  }
  return AppendBytes(text, bytes);
}

absl::Status Constraint::AppendBytes(TextState& text, std::string_view bytes) const {
  MutexLock lock(&mutex_);
  Adopt(text);
  const int32_t next = table_->Walk(text.state_, bytes);
  if (next == StateTable::kDead) {
    if (table_->overflowed()) return TooAmbiguous();
    return absl::FailedPreconditionError("the grammar does not allow the text");
  }
  text.state_ = next;
  text.work_left_ += TextState::kTokenWork;
  return absl::OkStatus();
}

bool Constraint::CanEnd(const TextState& text) const {
  MutexLock lock(&mutex_);
  return text.state_ != StateTable::kDead && text.table_->EndsAt(text.state_);
}

// Walks through nodes [begin, end), which go on from where `state` is, and calls `on_node` for
// those that live.
template <typename OnNode>
void Constraint::Visit(uint32_t begin, uint32_t end, int32_t state, const OnNode& on_node) const {
  const std::span<const Vocabulary::Node> nodes = vocabulary_->nodes();
  if (begin >= end) return;
  std::array<int32_t, Vocabulary::kMaxTokenBytes + 1> path;
  path[nodes[begin].depth - 1] = state;
  for (uint32_t i = begin; i < end && !Spent();) {
    const Vocabulary::Node& node = nodes[i];
    ++visits_;
    const int32_t next = table_->Step(path[node.depth - 1], node.byte);
    if (next == StateTable::kDead) {
      i = node.behind;
      continue;
    }
    path[node.depth] = next;
    on_node(i, next);
    ++i;
  }
}

std::shared_ptr<const Constraint::Local> Constraint::LocalOf(Place place) const {
  const bool bottom = place.stack == kBottom;
  const auto known = locals_.find({place.state, bottom});
  if (known != locals_.end()) return known->second;
  std::shared_ptr<const Local> made = MakeLocal(place.state, bottom ? kBottom : kUnknown);
  if (table_->overflowed() || Spent()) return made;  // It may lack some.
  local_bytes_ += made->bytes();
  return locals_[{place.state, bottom}] = std::move(made);
}

// The tokens that go on from `state` alone. Those that begin with one more character of a run are
// AddRun's.
std::shared_ptr<const Constraint::Local> Constraint::MakeLocal(StateId state, StackId stack) const {
  const auto local = std::make_shared<Local>();
  const bool in_run = automaton_.states[static_cast<size_t>(state)].run >= 0;
  std::array<std::vector<Place>, 256> reached;
  for (const ByteEdge& edge : automaton_.EdgesOf(state)) {
    if (in_run && edge.in_run) continue;
    for (size_t byte = edge.low; byte <= edge.high; ++byte)
      reached[byte].push_back({edge.to, stack});
  }
  const std::span<const Vocabulary::Node> nodes = vocabulary_->nodes();
  const auto take = [&](uint32_t i, int32_t at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const std::span<const int32_t> tokens = vocabulary_->TokensOf(nodes[i]);
    local->tokens.insert(local->tokens.end(), tokens.begin(), tokens.end());
    if (table_->LeavesAt(at) && nodes[i].behind > i + 1) local->leaves.push_back(i);
  };
  for (uint32_t i = 0; i < nodes.size(); i = nodes[i].behind) {
    std::vector<Place>& places = reached[nodes[i].byte];
    if (places.empty()) continue;
    const int32_t first = table_->Find(std::move(places));
    ++visits_;
    if (first == StateTable::kDead) continue;
    take(i, first);
    Visit(i + 1, nodes[i].behind, first, take);
  }
  if (local->tokens.size() > 2 * words_) {
    local->words.resize(words_);
    for (const int32_t token : local->tokens) Set(local->words, token);
    local->tokens = {};
  }
  local->tokens.shrink_to_fit();
  return local;
}

Constraint::Run& Constraint::RunOf(int32_t id) const {
  const auto [it, added] = runs_.try_emplace(id);
  Run& run = it->second;
  if (!added) return run;
  const std::span<const Vocabulary::Node> nodes = vocabulary_->nodes();
  const int32_t loop = table_->Find({{automaton_.run_loops[static_cast<size_t>(id)], kUnknown}});
  std::array<int32_t, Vocabulary::kMaxTokenBytes + 1> path;
  std::array<int32_t, Vocabulary::kMaxTokenBytes + 1> chars;  // Begun.
  path[0] = loop;
  chars[0] = 0;
  std::vector<std::vector<int32_t>> tokens;
  for (uint32_t i = 0; i < nodes.size();) {
    const Vocabulary::Node& node = nodes[i];
    const int32_t from = path[node.depth - 1];
    const int32_t next = table_->Step(from, node.byte);
    ++visits_;
    if (next == StateTable::kDead) {
      if (from == loop && node.depth > 1) run.exits.push_back({i, chars[node.depth - 1]});
      i = node.behind;
      continue;
    }
    path[node.depth] = next;
    chars[node.depth] = chars[node.depth - 1] + (from == loop ? 1 : 0);
    const auto begun = static_cast<size_t>(chars[node.depth]);
    if (tokens.size() <= begun) tokens.resize(begun + 1);
    const std::span<const int32_t> here = vocabulary_->TokensOf(node);
    tokens[begun].insert(tokens[begun].end(), here.begin(), here.end());
    ++i;
  }
  for (const std::vector<int32_t>& of : tokens) {
    run.tokens.insert(run.tokens.end(), of.begin(), of.end());
    run.up_to.push_back(run.tokens.size());
  }
  local_bytes_ += 4 * run.tokens.size() + sizeof(Run::Exit) * run.exits.size();
  return run;
}

void Constraint::AddRun(Place place, TokenMask& mask) const {
  const Automaton::State& state = automaton_.states[static_cast<size_t>(place.state)];
  Run& run = RunOf(state.run);
  if (run.up_to.empty()) return;
  const int longest = static_cast<int>(run.up_to.size()) - 1;
  const int left =
      state.run_left == kUnbounded ? longest : std::min(static_cast<int>(state.run_left), longest);
  const int kept = left == longest ? left : std::min(left, kLongestKeptRun);
  std::vector<uint64_t>& words = run.words[kept];
  if (words.empty()) {
    words.resize(words_);
    local_bytes_ += 8 * words_;
    for (size_t i = 0; i < run.up_to[static_cast<size_t>(kept)]; ++i) Set(words, run.tokens[i]);
  }
  Unite(mask.words, words);
  for (size_t i = run.up_to[static_cast<size_t>(kept)]; i < run.up_to[static_cast<size_t>(left)];
       ++i) {
    Set(mask.words, run.tokens[i]);
  }
  const int32_t behind = table_->Find({{state.run_exit, place.stack}});
  const std::span<const Vocabulary::Node> nodes = vocabulary_->nodes();
  visits_ += static_cast<int64_t>(run.exits.size());
  for (const Run::Exit& exit : run.exits) {
    if (exit.chars < state.run_needed) continue;
    if (state.run_left != kUnbounded && exit.chars > state.run_left) continue;
    if (table_->Step(behind, nodes[exit.node].byte) == StateTable::kDead) continue;
    AllowBehind(exit.node, nodes[exit.node].behind, behind, mask);
  }
}

void Constraint::AllowBehind(uint32_t begin, uint32_t end, int32_t state, TokenMask& mask) const {
  if (state == StateTable::kDead) return;
  Visit(begin, end, state, [&](uint32_t i, int32_t) {
    for (const int32_t token : vocabulary_->TokensOf(vocabulary_->nodes()[i])) {
      Set(mask.words, token);
    }
  });
}

void Constraint::AllowByPlaces(int32_t state, TokenMask& mask) const {
  const std::span<const Vocabulary::Node> nodes = vocabulary_->nodes();
  // The table may grow meanwhile: a copy.
  const std::vector<Place> places(table_->PlacesOf(state).begin(), table_->PlacesOf(state).end());
  for (const Place& place : places) {
    if (Spent()) return;
    const std::shared_ptr<const Local> local = LocalOf(place);
    visits_ += static_cast<int64_t>((local->tokens.size() + local->words.size()) / 16);
    for (const int32_t token : local->tokens) Set(mask.words, token);
    if (!local->words.empty()) Unite(mask.words, local->words);
    if (automaton_.states[static_cast<size_t>(place.state)].run >= 0) AddRun(place, mask);
    if (local->leaves.empty() || place.stack == kBottom) continue;
    const StateTable::Frame frame = table_->FrameOf(place.stack);
    const int32_t behind = table_->Find({{frame.back_to, frame.beneath}});
    visits_ += static_cast<int64_t>(local->leaves.size());
    for (const uint32_t leaf : local->leaves) {
      AllowBehind(leaf + 1, nodes[leaf].behind, behind, mask);
    }
  }
}

// Null if it would take too long.
std::shared_ptr<const TokenMask> Constraint::MakeMask(int32_t state, int64_t begun) const {
  const auto mask = std::make_shared<TokenMask>();
  mask->words.resize(words_);
  work_limit_ = begun + kWorkByPlaces;
  AllowByPlaces(state, *mask);
  if (Spent()) {
    mask->words.assign(words_, 0);
    work_limit_ = begun + kWorkByPlaces + kWorkAsWhole;
    AllowBehind(0, static_cast<uint32_t>(vocabulary_->nodes().size()), state, *mask);
  }
  const bool spent = Spent();
  work_limit_ = std::numeric_limits<int64_t>::max();
  if (spent) return nullptr;
  mask->ends = table_->EndsAt(state);
  mask->any =
      std::any_of(mask->words.begin(), mask->words.end(), [](uint64_t word) { return word != 0; });
  return mask;
}

absl::StatusOr<std::shared_ptr<const TokenMask>> Constraint::MaskOf(TextState& text) const {
  MutexLock lock(&mutex_);
  const int64_t begun = Work();
  std::shared_ptr<const TokenMask> mask;
  for (int tries = 0; tries < 2; ++tries) {
    Adopt(text);
    if (text.state_ == StateTable::kDead) return TooAmbiguous();
    if (const auto it = masks_.find(text.state_); it != masks_.end()) return it->second;
    if (masks_.size() * words_ * sizeof(uint64_t) > kMaxMaskBytes) masks_.clear();
    if (local_bytes_ > kMaxLocalBytes) {
      locals_.clear();
      runs_.clear();
      local_bytes_ = 0;
    }
    mask = text.work_left_ > 0 ? MakeMask(text.state_, begun) : nullptr;
    if (mask == nullptr || !table_->overflowed()) break;
    mask = nullptr;  // In a new table there is room, perhaps.
  }
  text.work_left_ -= Work() - begun;
  if (mask == nullptr) return TooAmbiguous();
  return masks_[text.state_] = std::move(mask);
}

void Constraint::Prepare(int64_t work) {
  MutexLock lock(&mutex_);
  const int64_t begun = Work();
  for (size_t i = 0; i < automaton_.states.size() && Work() - begun < work; ++i) {
    const Automaton::State& state = automaton_.states[i];
    if (state.edges_count == 0 || table_->overflowed()) continue;
    if (table_->bytes() > kMaxTableBytes || local_bytes_ > kMaxLocalBytes / 2) break;
    const auto id = static_cast<StateId>(i);
    const std::shared_ptr<const Local> local = LocalOf({id, kUnknown});
    if (local->leaves.empty()) locals_[{id, true}] = local;  // The stack changes nothing.
    if (state.run >= 0) RunOf(state.run);
  }
  if (table_->overflowed()) Renew();
}

}  // namespace baton::grammar
