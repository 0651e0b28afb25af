#include "services/prefill/stage/kv_sender.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/kv/head_routes.h"
#include "common/kv/wire.h"
#include "common/transport/back_on_this_thread.h"
#include "services/prefill/stage/unreliable_send.h"

namespace baton::prefill {
namespace {

const char* FailureReason(const absl::Status& status) {
  if (absl::IsUnavailable(status)) return "peer_lost";
  return absl::IsCancelled(status) ? "aborted" : "other";
}

// The status that the stage's core gets for a message that was not sent.
absl::Status Blame(const absl::Status& status, const InstanceRef& decode, const InstanceRef& self) {
  const std::string what =
      absl::StrCat("KV could not be sent to ", decode.id, ": ", status.message());
  // Our own queue: no fault of decode's.
  if (absl::IsResourceExhausted(status)) {
    return WithLeg(absl::ResourceExhaustedError(what), "prefill", self.id);
  }
  absl::Status lost = absl::UnavailableError(what);
  if (IsUnconnected(status)) lost = Unconnected(std::move(lost));
  return WithLeg(std::move(lost), "decode", decode.id);
}

KvOutboxOptions OutboxOptions(const Executor& executor) {
  KvOutboxOptions options;
  options.page_bytes = executor.kv().PageBytes();
  options.layers = {executor.kv().layer_begin, executor.kv().layer_end};
  options.tensor_rank = executor.tensor_rank();
  options.kv_heads = executor.config().num_key_value_heads;
  return options;
}

// Where what a message carries lies: one piece if it has all of its pages, which are then
// neighbours.
std::vector<KvPiece> PiecesOf(const SendKvMessage& message, const KvGeometry& kv) {
  const LayerRange layers{kv.layer_begin, kv.layer_end};
  const size_t of_each = message.bytes / static_cast<size_t>(message.page_count);
  const std::vector<PageRun> runs = MessageRuns(message.box.layers, message.box.heads,
                                                {layers, kv.kv_heads, kv.HeadBytes(), kv.planes},
                                                kv.head_begin, message.offset_bytes, of_each);
  std::vector<KvPiece> pieces;
  for (int page = 0; page < message.page_count; ++page) {
    for (const PageRun& run : runs) {
      if (!pieces.empty()) {
        KvPiece& last = pieces.back();
        const size_t pages_between = static_cast<size_t>(message.local_page + page - last.page);
        if (last.offset_bytes + last.bytes ==
            pages_between * kv.PageBytes() + run.destination_offset) {
          last.bytes += run.bytes;
          continue;
        }
      }
      pieces.push_back({message.local_page + page, run.destination_offset, run.bytes});
    }
  }
  return pieces;
}

}  // namespace

KvSender::KvSender(Options options)
    : options_(std::move(options)), outbox_(OutboxOptions(*options_.executor)) {}

absl::Status KvSender::Start() {
  return options_.data_plane->Register(MessageKind::kKvControl, this);
}

// ---- From the loop ----

bool KvSender::Submit(std::function<void(std::vector<KvOutboxAction>&)> change) {
  // What a stage has to send is bounded by its pages.
  return options_.data_plane->PostReserved([this, change = std::move(change)] {
    std::vector<KvOutboxAction> actions;
    change(actions);
    actions_.Raise(std::move(actions));
  });
}

void KvSender::Send(const SendKv& action) {
  const bool taken = Submit([this, action](std::vector<KvOutboxAction>& actions) {
    const int page_size = options_.executor->kv().page_size;
    const int end_page = action.first_page + static_cast<int>(action.pages.size());
    const int tail_tokens = action.ticket.prompt_tokens % page_size;
    if (end_page == action.ticket.prompt_pages && tail_tokens != 0) {
      // The bytes behind a prompt's last token are another request's.
      options_.executor->kv_memory().ClearTail(action.pages.back(), tail_tokens);
    }
    outbox_.Add(action, NowUs(), actions);
  });
  if (taken) return;
  options_.on_event(
      KvSent{action.epoch, action.send_id, absl::CancelledError("the stage has ended"), 0, 0});
}

void KvSender::Commit(const SendCommit& action) {
  const bool taken = Submit([this, action](std::vector<KvOutboxAction>& actions) {
    outbox_.Add(action, NowUs(), actions);
  });
  if (taken) return;
  options_.on_event(
      KvSent{action.epoch, action.send_id, absl::CancelledError("the stage has ended"), 0, 0});
}

// The data thread has ended if these are not taken, and everything with it.

void KvSender::Cancel(uint64_t attempt_id) {
  (void)Submit([this, attempt_id](std::vector<KvOutboxAction>& actions) {
    outbox_.Cancel(attempt_id, NowUs(), actions);
  });
}

void KvSender::CancelAll() {
  (void)Submit(
      [this](std::vector<KvOutboxAction>& actions) { outbox_.CancelAll(NowUs(), actions); });
}

void KvSender::Forget(uint64_t attempt_id) {
  (void)Submit([this, attempt_id](std::vector<KvOutboxAction>&) { outbox_.Forget(attempt_id); });
}

// ---- On the data thread ----

void KvSender::Perform(const std::vector<KvOutboxAction>& actions) {
  for (const KvOutboxAction& action : actions) {
    std::visit([this](const auto& a) { Perform(a); }, action);
  }
}

void KvSender::Perform(const ExportKv& action) {
  const SendKvMessage& message = action.message;
  absl::Status injected = Failpoint("prefill.kv_export");
  if (!injected.ok()) return OnExported(message.message_id, injected);
  options_.executor->kv_memory().Export(
      PiecesOf(message, options_.executor->kv()),
      BackOnThisThread<absl::StatusOr<ExportedKv>>(
          *options_.data_plane, [this, message_id = message.message_id](const auto& exported) {
            OnExported(message_id, exported);
          }));
}

void KvSender::OnExported(uint64_t message_id, const absl::StatusOr<ExportedKv>& exported) {
  std::vector<KvOutboxAction> actions;
  if (exported.ok()) {
    exports_[message_id] = *exported;
    outbox_.Exported(message_id, exported->checksum, NowUs(), actions);
  } else {
    const absl::Status why = Annotate(exported.status(), "KV could not be exported");
    outbox_.Exported(message_id, WithLeg(why, "prefill", options_.self.id), NowUs(), actions);
  }
  actions_.Raise(std::move(actions));
}

void KvSender::Perform(const SendKvMessage& action) {
  if (absl::Status status = Failpoint("prefill.kv_send"); !status.ok()) {
    MessageEnded(action.message_id, action.decode, 0, status);
    return;
  }
  const std::span<const std::byte> run = exports_.at(action.message_id).memory.Host();
  KvDataHeader header;
  header.slot = action.slot;
  header.generation = action.generation;
  header.decode_incarnation = action.decode.incarnation;
  header.writer_incarnation = options_.self.incarnation;
  header.layers = action.box.layers;
  header.first_page = action.first_page;
  header.page_count = action.page_count;
  header.part = action.part;
  header.bytes = run.size();
  header.checksum = action.checksum;
  Outgoing message;
  message.kind = MessageKind::kKvPages;
  message.header = EncodeKvData(header);
  message.runs.push_back(run);
  Deliver(action.message_id, action.decode, std::move(message));
}

void KvSender::Perform(const SendCommitMessage& action) {
  if (absl::Status status = Failpoint("prefill.commit_send"); !status.ok()) {
    MessageEnded(action.message_id, action.decode, 0, status);
    return;
  }
  if (action.again) options_.metrics->Increment(Metric::kKvCommitsRepeatedTotal);
  KvCommit commit;
  commit.slot = action.slot;
  commit.generation = action.generation;
  commit.decode_incarnation = action.decode.incarnation;
  commit.writer_incarnation = options_.self.incarnation;
  commit.writer_id = options_.self.id;
  commit.layers = action.layers;
  commit.page_count = action.page_count;
  commit.checksum_sum = action.checksum_sum;
  commit.has_first_token = action.first_token.has_value();
  if (action.first_token.has_value()) commit.first_token = *action.first_token;
  Outgoing message;
  message.kind = MessageKind::kKvControl;
  message.header = EncodeKvCommit(commit);
  Deliver(action.message_id, action.decode, std::move(message));
}

void KvSender::Perform(const KvSent& sent) {
  if (sent.status.ok()) {
    if (sent.bytes > 0) {
      options_.metrics->Observe(Metric::kKvTransferSeconds,
                                static_cast<double>(sent.transfer_us) * 1e-6);
    }
  } else {
    options_.metrics->Increment(Metric::kKvTransferFailuresTotal, 1, {FailureReason(sent.status)});
  }
  options_.on_event(sent);
}

void KvSender::Deliver(uint64_t message_id, const InstanceRef& decode, Outgoing message) {
  if (options_.want != nullptr && options_.want({decode})) {
    held_.push_back({message_id, decode, std::move(message)});
    return;
  }
  const bool is_commit = message.runs.empty();
  const size_t bytes = is_commit ? 0 : message.runs.front().size();
  const std::optional<PeerId> peer = options_.find_peer(decode);
  if (!peer.has_value()) {
    MessageEnded(message_id, decode, 0,
                 Unconnected(absl::UnavailableError("it can't be connected to")));
    return;
  }
  message.on_sent = [this, message_id, decode, bytes](const absl::Status& status) {
    MessageEnded(message_id, decode, bytes, status);
  };
  SendUnlessLost(*options_.data_plane, *peer, std::move(message),
                 is_commit ? "prefill.commit_lost" : "prefill.kv_lost");
}

void KvSender::OnEndpoints() {
  if (!options_.data_plane->PostReserved([this] { SendHeld(); })) {
    LOG(kDebug) << "the data thread has ended";
  }
}

// In the order of their coming; those that still have to wait are held again.
void KvSender::SendHeld() {
  for (Held& held : std::exchange(held_, {})) {
    Deliver(held.message_id, held.decode, std::move(held.message));
  }
}

void KvSender::MessageEnded(uint64_t message_id, const InstanceRef& decode, size_t bytes,
                            const absl::Status& status) {
  if (const auto exported = exports_.find(message_id); exported != exports_.end()) {
    options_.executor->kv_memory().EndExport(exported->second.export_id);
    exports_.erase(exported);
  }
  std::vector<KvOutboxAction> actions;
  if (status.ok()) {
    options_.metrics->Increment(Metric::kKvTransferBytesTotal, static_cast<double>(bytes));
    outbox_.MessageEnded(message_id, status, NowUs(), actions);
  } else {
    outbox_.MessageEnded(message_id, Blame(status, decode, options_.self), NowUs(), actions);
  }
  actions_.Raise(std::move(actions));
}

std::optional<Placement> KvSender::OnHeader(std::span<const std::byte> header,
                                            size_t payload_bytes) {
  const auto control = DecodeKvControl(header);
  const auto* greeting = control.ok() ? std::get_if<KvHeartbeat>(&*control) : nullptr;
  if (payload_bytes == 0 && greeting != nullptr) {
    if (options_.want != nullptr) (void)options_.want({greeting->sender});
    return Placement{};
  }
  const auto* receipt = control.ok() ? std::get_if<KvReceipt>(&*control) : nullptr;
  if (payload_bytes != 0 || receipt == nullptr || receipt->writer != options_.self) {
    const char* reason = control.ok() ? "not_a_writer" : "malformed";
    options_.metrics->Increment(Metric::kKvMessagesRefusedTotal, 1, {reason});
    LOG(kDebug) << "KV receipt refused (" << reason << "): " << control.status().message();
    return std::nullopt;
  }
  std::vector<KvOutboxAction> actions;
  outbox_.OnReceipt(*receipt, NowUs(), actions);
  actions_.Raise(std::move(actions));
  return Placement{};
}

void KvSender::Tick(int64_t now_us) {
  std::vector<KvOutboxAction> actions;
  outbox_.Tick(now_us, actions);
  actions_.Raise(std::move(actions));
  SendHeld();
}

void KvSender::SendHeartbeats(const std::vector<PeerId>& decodes) {
  for (const PeerId peer : decodes) {
    // One that has not left yet says as much as a second would.
    if (!beating_.insert(peer).second) continue;
    Outgoing message;
    message.kind = MessageKind::kKvControl;
    message.header = EncodeKvHeartbeat({options_.self});
    message.on_sent = [this, peer](const absl::Status&) { beating_.erase(peer); };
    options_.data_plane->Send(peer, std::move(message));
  }
}

}  // namespace baton::prefill
