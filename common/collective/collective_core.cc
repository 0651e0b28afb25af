#include "common/collective/collective_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace baton::collective {
namespace {

bool BetweenTwo(CollectiveKind kind) {
  return kind == CollectiveKind::kSend || kind == CollectiveKind::kReceive;
}

std::string Text(std::span<const std::byte> payload) {
  const size_t size = std::min(payload.size(), kFrameTextMax);
  return {reinterpret_cast<const char*>(payload.data()), size};
}

}  // namespace

CollectiveCore::CollectiveCore(GroupDescription group, CoreOptions options)
    : group_(std::move(group)),
      options_(options),
      group_hash_(GroupHash(group_)),
      peers_(group_.members.size()) {
  BATON_CHECK(ValidateGroup(group_).ok()) << ValidateGroup(group_);
  BATON_CHECK(options_.block_bytes > 0 && options_.block_bytes % 4 == 0 &&
              options_.window_frames > 0);
}

size_t CollectiveCore::frame_bytes_max() const {
  return sizeof(FrameHeader) + std::max(options_.block_bytes, kFrameTextMax);
}

void CollectiveCore::Submit(const Collective& collective, Communicator::Done done, int64_t now_us) {
  absl::Status status = ended_;
  if (status.ok()) status = ValidateCollective(group_, collective);
  if (status.ok() && submitted_.size() >= options_.communicator.pending_max) {
    status = absl::ResourceExhaustedError(
        absl::StrCat(group_.Describe(group_.rank), " has ", submitted_.size(),
                     " collectives under way, as many as it may"));
  }
  if (!status.ok()) {
    completions_.push_back({std::move(done), std::move(status)});
    return;
  }
  submitted_.push_back({collective, std::move(done)});
  Advance(now_us);
}

void CollectiveCore::Lost(int peer, const absl::Status& why, int64_t now_us) {
  if (std::exchange(peers_[peer].silent, true)) return;
  if (has_ended()) return;
  if (peers_[peer].left) return Advance(now_us);
  const std::string during = run_ ? absl::StrCat(" during ", DescribeData(current_)) : "";
  Fail(WithRank(absl::UnavailableError(
                    absl::StrCat(group_.Describe(peer), " is gone", during, ": ", why.message())),
                peer));
}

void CollectiveCore::Abort(absl::Status why) {
  if (has_ended()) return;
  if (why.ok()) why = absl::CancelledError("no reason given");
  if (!RankOf(why)) {
    why = WithRank(Annotate(std::move(why),
                            absl::StrCat(group_.Describe(group_.rank), " has aborted the group")),
                   group_.rank);
  }
  Fail(std::move(why));
}

void CollectiveCore::Leave() {
  if (has_ended()) return;
  End(WithRank(
          absl::UnavailableError(absl::StrCat(group_.Describe(group_.rank), " has left the group")),
          group_.rank),
      FrameKind::kLeave);
}

void CollectiveCore::End(absl::Status why, FrameKind farewell) {
  if (has_ended()) return;
  ended_ = std::move(why);
  farewell_ = farewell;
  run_.reset();
  for (Submitted& submitted : submitted_) {
    completions_.push_back({std::move(submitted.done), ended_});
  }
  submitted_.clear();
  for (Peer& peer : peers_) {
    peer.offered.clear();
    peer.released = 0;
  }
}

bool CollectiveCore::Offer(int peer, std::span<const std::byte> message, int64_t now_us) {
  const std::optional<Frame> frame = ParseFrame(message);
  if (!frame) {
    Fail(WithRank(absl::FailedPreconditionError(
                      absl::StrCat(group_.Describe(peer), " has sent what is no frame")),
                  peer));
    return false;
  }
  const bool kept = TakeFrame(peer, *frame);
  Advance(now_us);
  return kept && !has_ended();
}

bool CollectiveCore::TakeFrame(int from, const Frame& frame) {
  Peer& peer = peers_[from];
  if (frame.header.kind == FrameKind::kHello) TakeHello(from, frame);
  if (frame.header.group != group_hash_ || !peer.hello_seen) {
    // TakeHello has already failed with a more detailed error if the hello is of another group.
    Fail(WithRank(absl::FailedPreconditionError(absl::StrCat(
                      "what comes from ", group_.Describe(from), " is of another group")),
                  from));
    return false;
  }
  if (frame.header.kind == FrameKind::kAbort || frame.header.kind == FrameKind::kLeave) {
    TakeFarewell(from, frame);
    return false;
  }
  if (has_ended()) return false;
  if (frame.header.kind == FrameKind::kAsk) {
    peer.answer_due = run_ != nullptr;
    peer.asks = run_ == nullptr;
  }
  if (frame.header.kind == FrameKind::kAnswer) peer.waits_for = frame.header.bytes_total;
  const bool data = frame.header.kind == FrameKind::kData;
  if (frame.header.consumed > peer.frames_sent ||
      (data && peer.offered.size() >= options_.window_frames)) {
    Fail(WithRank(
        absl::InternalError(absl::StrCat(group_.Describe(from), " does not keep to its credit")),
        from));
    return false;
  }
  peer.frames_acknowledged = std::max(peer.frames_acknowledged, frame.header.consumed);
  if (!data) return false;
  peer.offered.push_back(frame);
  CheckPassed(from);
  return true;
}

void CollectiveCore::TakeHello(int from, const Frame& frame) {
  if (frame.header.group == group_hash_ && frame.header.peer == from) {
    peers_[from].hello_seen = true;
    return;
  }
  Fail(WithRank(absl::FailedPreconditionError(absl::StrCat("this is ", DescribeGroup(group_), "; ",
                                                           group_.Describe(from), " takes it for ",
                                                           Text(frame.payload))),
                from));
}

void CollectiveCore::TakeFarewell(int from, const Frame& frame) {
  Peer& peer = peers_[from];
  if (frame.header.kind == FrameKind::kLeave) {
    peer.left = WithRank(
        absl::UnavailableError(absl::StrCat(group_.Describe(from), " has left the group")), from);
    return;
  }
  peer.silent = true;
  const auto code = static_cast<absl::StatusCode>(std::clamp<uint64_t>(
      frame.header.sequence, 1, static_cast<uint64_t>(absl::StatusCode::kUnauthenticated)));
  absl::Status why(code, Text(frame.payload));
  if (frame.header.peer >= 0) why = WithRank(std::move(why), frame.header.peer);
  Fail(std::move(why));
}

void CollectiveCore::CheckPassed(int from) {
  const Peer& peer = peers_[from];
  if (has_ended() || peer.offered.empty()) return;
  const FrameHeader& theirs = peer.offered.front().header;
  if (BetweenTwo(theirs.collective) || theirs.sequence > passed_.sequence) return;
  Fail(Disagreement(passed_, from, theirs));
}

void CollectiveCore::Advance(int64_t now_us) {
  while (!has_ended()) {
    if (!run_) {
      if (submitted_.empty()) return;
      BeginNext(now_us);
    }
    if (run_ && !run_->finished()) {
      if (!TakeOffered()) return;
      RestartWaiting(now_us);
    }
    if (has_ended() || (run_ && !run_->finished())) continue;
    if (run_ && ++step_ < steps_.size()) {
      run_ = std::make_unique<StepRun>(steps_[step_], current_.type, group_.rank,
                                       options_.block_bytes);
    } else {
      FinishFirst();
    }
  }
}

void CollectiveCore::BeginNext(int64_t now_us) {
  const Collective& collective = submitted_.front().collective;
  const bool receives = collective.kind == CollectiveKind::kReceive;
  const TensorView& view = receives ? collective.output : collective.input;
  current_ = NewHeader(FrameKind::kData, -1);
  current_.collective = collective.kind;
  current_.type = view.type;
  current_.bytes_total = view.bytes();
  Peer& peer = peers_[collective.peer];
  const bool has_peer =
      BetweenTwo(collective.kind) || collective.kind == CollectiveKind::kBroadcast;
  current_.peer = has_peer ? collective.peer : -1;
  current_.sequence = collective.kind == CollectiveKind::kSend ? ++peer.sends
                      : receives                               ? ++peer.receives
                                                               : ++collectives_begun_;
  RestartWaiting(now_us);
  for (Peer& other : peers_) other.answer_due |= std::exchange(other.asks, false);
  steps_ = BeginExchange(collective, group_.rank, group_.size());
  step_ = 0;
  if (steps_.empty()) return;
  run_ = std::make_unique<StepRun>(steps_[0], current_.type, group_.rank, options_.block_bytes);
}

bool CollectiveCore::TakeOffered() {
  bool taken = false;
  for (int rank = 0; rank < group_.size(); ++rank) {
    Peer& peer = peers_[rank];
    while (!has_ended() && !peer.offered.empty() && run_->Takes(rank)) {
      TakeData(rank);
      taken = true;
    }
    if (!has_ended() && peer.left && peer.offered.empty() &&
        (run_->Owes(rank) || run_->NextOut(rank))) {
      absl::Status why = *peer.left;
      Fail(Annotate(std::move(why), DescribeData(current_)));
    }
    if (has_ended()) return true;
  }
  return taken;
}

void CollectiveCore::TakeData(int from) {
  Peer& peer = peers_[from];
  const Frame& frame = peer.offered.front();
  const FrameHeader& theirs = frame.header;
  FrameHeader expected = current_;
  if (current_.collective == CollectiveKind::kReceive) {
    expected.collective = CollectiveKind::kSend;
    expected.peer = group_.rank;
  }
  const bool same = theirs.collective == expected.collective && theirs.peer == expected.peer &&
                    theirs.sequence == expected.sequence && theirs.type == expected.type &&
                    theirs.bytes_total == expected.bytes_total;
  if (!same) return Fail(Disagreement(current_, from, theirs));
  if (theirs.step != step_ || theirs.offset != run_->InOffset(from) ||
      frame.payload.size() != run_->InBytes(from)) {
    return Fail(WithRank(absl::InternalError(absl::StrCat(
                             group_.Describe(from), " sends other parts of ", DescribeData(theirs),
                             " than ", group_.Describe(group_.rank), " expects")),
                         from));
  }
  run_->Take(from, frame.payload);
  peer.offered.pop_front();
  ++peer.released;
  ++peer.frames_read;
}

absl::Status CollectiveCore::Disagreement(const FrameHeader& own, int peer,
                                          const FrameHeader& theirs) const {
  return absl::FailedPreconditionError(absl::StrCat(group_.Describe(group_.rank), " is at ",
                                                    DescribeData(own), ", ", group_.Describe(peer),
                                                    " at ", DescribeData(theirs)));
}

void CollectiveCore::FinishFirst() {
  run_.reset();
  completions_.push_back({std::move(submitted_.front().done), absl::OkStatus()});
  submitted_.pop_front();
  if (BetweenTwo(current_.collective)) return;
  passed_ = current_;
  for (int rank = 0; rank < group_.size(); ++rank) CheckPassed(rank);
}

}  // namespace baton::collective
