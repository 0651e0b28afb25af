// The frames that the core sends; collective_core.cc handles those that it receives.
#include <algorithm>
#include <utility>

#include "common/collective/collective_core.h"

namespace baton::collective {
namespace {

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.substr(0, kFrameTextMax)));
}

}  // namespace

FrameHeader CollectiveCore::NewHeader(FrameKind kind, int peer) {
  FrameHeader header;
  header.kind = kind;
  header.group = group_hash_;
  if (peer >= 0) header.consumed = peers_[peer].frames_read;
  return header;
}

bool CollectiveCore::HasCredit(const Peer& peer) const {
  return peer.frames_sent - peer.frames_acknowledged < options_.window_frames;
}

size_t CollectiveCore::NextFrame(int to, std::span<std::byte> room, int64_t now_us) {
  Peer& peer = peers_[to];
  if (to == group_.rank || peer.farewell_sent) return 0;
  if (!std::exchange(peer.hello_sent, true)) {
    FrameHeader header = NewHeader(FrameKind::kHello, to);
    header.peer = group_.rank;
    return WriteFrame(header, Bytes(DescribeGroup(group_)), room);
  }
  if (has_ended()) return WriteFarewell(to, room);
  if (run_ && HasCredit(peer) && run_->NextOut(to)) {
    const size_t bytes = WriteData(to, room);
    RestartWaiting(now_us);
    Advance(now_us);
    return bytes;
  }
  if (std::exchange(peer.ask_due, false)) {
    return WriteFrame(NewHeader(FrameKind::kAsk, to), {}, room);
  }
  if (std::exchange(peer.answer_due, false) && run_) {
    FrameHeader header = NewHeader(FrameKind::kAnswer, to);
    header.bytes_total = Missing();
    return WriteFrame(header, {}, room);
  }
  // Half a window, so that the other side continues before it has to wait.
  if (peer.frames_read - peer.frames_told < (options_.window_frames + 1) / 2) return 0;
  peer.frames_told = peer.frames_read;
  return WriteFrame(NewHeader(FrameKind::kCredit, to), {}, room);
}

size_t CollectiveCore::WriteData(int to, std::span<std::byte> room) {
  Peer& peer = peers_[to];
  const StepRun::Block block = *run_->NextOut(to);
  FrameHeader header = current_;
  header.consumed = peer.frames_told = peer.frames_read;
  header.offset = block.offset;
  header.step = static_cast<uint32_t>(step_);
  const size_t bytes = WriteFrame(header, block.bytes, room);
  ++peer.frames_sent;
  run_->Sent(to);
  run_->Settle();
  return bytes;
}

size_t CollectiveCore::WriteFarewell(int to, std::span<std::byte> room) {
  peers_[to].farewell_sent = true;
  FrameHeader header = NewHeader(farewell_, to);
  header.peer = RankOf(ended_).value_or(-1);
  header.sequence = static_cast<uint64_t>(ended_.code());
  const std::string message(ended_.message());
  return WriteFrame(header, Bytes(message), room);
}

size_t CollectiveCore::TakeReleased(int peer) { return std::exchange(peers_[peer].released, 0); }

std::vector<CollectiveCore::Completion> CollectiveCore::TakeCompletions() {
  return std::exchange(completions_, {});
}

bool CollectiveCore::formed() const {
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (rank != group_.rank && !peers_[rank].hello_seen) return false;
  }
  return true;
}

bool CollectiveCore::quiet() const {
  if (!has_ended()) return false;
  for (int rank = 0; rank < group_.size(); ++rank) {
    const Peer& peer = peers_[rank];
    const bool heard = peer.silent || peer.left;
    const bool told = peer.silent || peer.farewell_sent;
    if (rank != group_.rank && !(heard && told)) return false;
  }
  return true;
}

}  // namespace baton::collective
