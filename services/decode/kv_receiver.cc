#include "services/decode/kv_receiver.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/kv/head_routes.h"
#include "common/kv/wire.h"
#include "common/transport/back_on_this_thread.h"

namespace baton::decode {
namespace {

// Often enough that leases end on time and that a stuck data thread is noticed.
constexpr int64_t kMinTickUs = 5'000;
constexpr int64_t kMaxTickUs = 250'000;
constexpr size_t kMostHeldReceipts = 4096;
constexpr size_t kMostGreeted = 8192;

// Merges adjacent runs: UCX places a single run without a copy where it can.
void Append(std::span<std::byte> run, std::vector<std::span<std::byte>>& runs) {
  if (!runs.empty() && runs.back().data() + runs.back().size() == run.data()) {
    runs.back() = {runs.back().data(), runs.back().size() + run.size()};
  } else {
    runs.push_back(run);
  }
}

// The label of a failed hand-off.
const char* FailureReason(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kDataLoss:
      return "checksum";
    case absl::StatusCode::kDeadlineExceeded:
      return "timeout";
    case absl::StatusCode::kUnavailable:
      return "peer_lost";
    case absl::StatusCode::kInternal:
      return "refused";
    default:
      return "other";
  }
}

}  // namespace

KvReceiver::KvReceiver(Options options) : options_(std::move(options)), table_(options_.table) {
  const KvGeometry& kv = options_.executor->kv();
  const LeaseTableOptions& table = options_.table;
  const int model_heads = table.model_kv_heads == 0 ? kv.kv_heads : table.model_kv_heads;
  BATON_CHECK(kv.layers() == table.layout.layers &&
              kv.LayerBytes() == table.layout.BytesPerLayer() &&
              kv.heads() == KvHeadsOf(model_heads, table.rank))
      << "the executor's pages are not of the table's layout and rank";
}

absl::Status KvReceiver::Start() {
  last_tick_us_ = NowUs();
  BATON_RETURN_IF_ERROR(options_.data_plane->Register(MessageKind::kKvPages, &pages_));
  if (absl::Status status = options_.data_plane->Register(MessageKind::kKvControl, &control_);
      !status.ok()) {
    options_.data_plane->Unregister(MessageKind::kKvPages);
    return status;
  }
  const int64_t tick_us = std::clamp(options_.table.writer_lease_us / 20, kMinTickUs, kMaxTickUs);
  options_.data_plane->SetTimer(tick_us, [this](int64_t now_us) { OnTick(now_us); });
  return absl::OkStatus();
}

// ---- From the core's loop ----

void KvReceiver::Grant(KvGrant grant) {
  Submit([this, grant = std::move(grant)] {
    for (const KvWriter& writer : grant.writers) to_greet_.insert(writer.instance);
    table_.Grant(grant, NowUs());
    options_.metrics->Set(Metric::kKvGrantsActive, table_.active_grants());
  });
}

void KvReceiver::Revoke(uint32_t slot, uint64_t generation) {
  Submit([this, slot, generation] {
    first_byte_us_.erase(generation);
    table_.Revoke(slot, generation, outbox_);
    options_.metrics->Set(Metric::kKvGrantsActive, table_.active_grants());
  });
}

void KvReceiver::After(std::function<void()> then) { Submit(std::move(then)); }

void KvReceiver::Submit(std::function<void()> command) {
  // The core bounds them: a few for each slot.
  const bool taken = options_.data_plane->PostReserved([this, command = std::move(command)] {
    command();
    Flush();
  });
  if (!taken) {
    LOG(kDebug) << "the data thread has ended";
  }
}

// ---- From the data plane ----

std::optional<Placement> KvReceiver::Refuse(const char* reason, const absl::Status& status) {
  options_.metrics->Increment(Metric::kKvMessagesRefusedTotal, 1, {reason});
  LOG(kDebug) << "KV message refused (" << reason << "): " << status.message();
  return std::nullopt;
}

// The runs of a message's bytes in each page: one run if the message has all heads of this process
// in its layers.
std::vector<PageRun> KvReceiver::RunsOf(const KvPlacement& allowed) const {
  const KvGeometry& kv = options_.executor->kv();
  const KvBand held{{kv.layer_begin, kv.layer_end}, kv.kv_heads, kv.HeadBytes(), kv.planes};
  return MessageRuns(allowed.layers, allowed.heads, held, kv.head_begin, allowed.offset_bytes,
                     allowed.page_bytes);
}

std::optional<Placement> KvReceiver::OnPages(std::span<const std::byte> header,
                                             size_t payload_bytes) {
  if (absl::Status status = Failpoint("decode.kv_header"); !status.ok()) {
    return Refuse("other", status);
  }
  const auto data = DecodeKvData(header);
  if (!data.ok()) return Refuse("malformed", data.status());
  KvRefusal refusal{};
  const int64_t now_us = NowUs();
  const auto allowed = table_.OnData(*data, payload_bytes, now_us, refusal);
  if (!allowed.ok()) return Refuse(KvRefusalName(refusal), allowed.status());

  Placement placement;
  placement.receipt = allowed->receipt;
  UnderWay& under_way = under_way_[allowed->receipt];
  under_way.bytes = data->bytes;
  const std::vector<PageRun> runs = RunsOf(*allowed);
  for (const int page : allowed->pages) {
    for (const PageRun& run : runs) {
      const KvPiece piece{page, run.destination_offset, run.bytes};
      under_way.pieces.push_back(piece);
      Append(options_.executor->kv_memory().Landing(piece).Host(), placement.runs);
    }
  }
  first_byte_us_.try_emplace(data->generation, now_us);
  return placement;
}

void KvReceiver::OnPagesPlaced(uint64_t receipt, const absl::Status& transfer) {
  const auto found = under_way_.find(receipt);
  BATON_CHECK(found != under_way_.end()) << "receipt " << receipt;
  const UnderWay run = std::move(found->second);
  under_way_.erase(found);
  absl::Status status = transfer;
  if (status.ok()) status = Failpoint("decode.kv_placed");
  if (!status.ok()) return OnLanded(receipt, run.bytes, status);
  options_.executor->kv_memory().FinishLanding(
      run.pieces,
      BackOnThisThread<absl::StatusOr<uint64_t>>(
          *options_.data_plane, [this, receipt, bytes = run.bytes](const auto& checksum) {
            OnLanded(receipt, bytes, checksum);
          }));
}

void KvReceiver::OnLanded(uint64_t receipt, uint64_t bytes,
                          const absl::StatusOr<uint64_t>& checksum) {
  if (checksum.ok()) {
    options_.metrics->Increment(Metric::kKvTransferBytesTotal, static_cast<double>(bytes));
  }
  table_.OnPlaced(receipt, checksum.status(), checksum.value_or(0), NowUs(), outbox_);
  Flush();
}

std::optional<Placement> KvReceiver::OnControl(std::span<const std::byte> header,
                                               size_t payload_bytes) {
  if (payload_bytes != 0) {
    return Refuse("bad_length", absl::InvalidArgumentError("a control message has no payload"));
  }
  const auto control = DecodeKvControl(header);
  if (!control.ok()) return Refuse("malformed", control.status());
  if (const auto* heartbeat = std::get_if<KvHeartbeat>(&*control)) {
    table_.OnHeartbeat(heartbeat->sender, NowUs());
    return Placement{};
  }
  const auto* commit = std::get_if<KvCommit>(&*control);
  if (commit == nullptr) {
    return Refuse("malformed", absl::InvalidArgumentError("decode sends receipts and gets none"));
  }
  if (absl::Status status = Failpoint("decode.commit"); !status.ok()) {
    return Refuse("other", status);
  }
  KvRefusal refusal{};
  const absl::Status status = table_.OnCommit(*commit, NowUs(), refusal, outbox_);
  Flush();
  if (!status.ok()) return Refuse(KvRefusalName(refusal), status);
  return Placement{};
}

void KvReceiver::OnTick(int64_t now_us) {
  last_tick_us_ = now_us;
  const size_t before = outbox_.size();
  table_.Tick(now_us, outbox_);
  for (size_t i = before; i < outbox_.size(); ++i) {
    const auto* failed = std::get_if<KvFailed>(&outbox_[i]);
    if (failed != nullptr && absl::IsUnavailable(failed->status)) {
      options_.metrics->Increment(Metric::kKvLeasesExpiredTotal);
      greeted_.clear();  // A greeting may have been lost.
    }
  }
  Flush();
}

// ---- To the core's loop ----

void KvReceiver::OnEndpoints() {
  Submit([] {});
}

// A writer that can't be connected to repeats its commit after a while.
void KvReceiver::SendReceipts() {
  std::vector<KvReceipt> receipts = std::exchange(held_receipts_, {});
  for (KvReceipt& receipt : table_.TakeReceipts()) receipts.push_back(std::move(receipt));
  for (const KvReceipt& receipt : receipts) {
    if (options_.want != nullptr && options_.want({receipt.writer})) {
      if (held_receipts_.size() < kMostHeldReceipts) held_receipts_.push_back(receipt);
      continue;
    }
    const std::optional<PeerId> peer = options_.find_peer(receipt.writer);
    if (!peer.has_value() || !Failpoint("decode.receipt_lost").ok()) continue;
    Outgoing message;
    message.kind = MessageKind::kKvControl;
    message.header = EncodeKvReceipt(receipt);
    options_.data_plane->Send(*peer, std::move(message));
  }
}

// Writers hear of a grant from stage 0, and not before it plans the prompt; until then they would
// be silent to a decode service that they have had nothing to do with.
void KvReceiver::Greet() {
  for (const InstanceRef& writer : std::exchange(to_greet_, {})) {
    if (options_.want != nullptr && options_.want({writer})) {
      to_greet_.insert(writer);
      continue;
    }
    const std::optional<PeerId> peer = options_.find_peer(writer);
    if (!peer.has_value()) continue;
    if (greeted_.size() >= kMostGreeted) greeted_.clear();
    if (std::exchange(greeted_[writer], *peer) == *peer) continue;
    Outgoing message;
    message.kind = MessageKind::kKvControl;
    message.header = EncodeKvHeartbeat({options_.table.self});
    options_.data_plane->Send(*peer, std::move(message));
  }
}

void KvReceiver::Flush() {
  Greet();
  SendReceipts();
  if (outbox_.empty()) return;
  if (!options_.deliver(outbox_)) return;
  for (const LeaseEvent& event : outbox_) Count(event);
  outbox_.clear();
}

void KvReceiver::Count(const LeaseEvent& event) {
  if (const auto* failed = std::get_if<KvFailed>(&event)) {
    options_.metrics->Increment(Metric::kKvTransferFailuresTotal, 1,
                                {FailureReason(failed->status.code())});
    first_byte_us_.erase(failed->generation);
    LOG(kInfo) << "hand-off of generation " << failed->generation
               << " failed: " << DescribeStatus(failed->status);
  } else if (const auto* committed = std::get_if<KvCommitted>(&event)) {
    const auto first = first_byte_us_.find(committed->generation);
    if (first == first_byte_us_.end()) return;
    options_.metrics->Observe(Metric::kKvTransferSeconds,
                              static_cast<double>(NowUs() - first->second) * 1e-6);
    first_byte_us_.erase(first);
  }
}

}  // namespace baton::decode
