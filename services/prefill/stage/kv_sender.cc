#include "services/prefill/stage/kv_sender.h"

#include <xxhash.h>

#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/status.h"
#include "common/kv/wire.h"

namespace baton::prefill {
namespace {

// Of all runs in order.
uint64_t ChecksumOf(const std::vector<std::span<const std::byte>>& runs) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  BATON_CHECK(state != nullptr) << "out of memory";
  XXH3_64bits_reset(state.get());
  for (const auto& run : runs) XXH3_64bits_update(state.get(), run.data(), run.size());
  return XXH3_64bits_digest(state.get());
}

const char* FailureReason(const absl::Status& status) {
  if (absl::IsUnavailable(status) || absl::IsNotFound(status)) return "peer_lost";
  return absl::IsCancelled(status) ? "aborted" : "other";
}

}  // namespace

KvSender::KvSender(Options options)
    : options_(std::move(options)),
      layers_{options_.executor->kv().layer_begin, options_.executor->kv().layer_end} {}

// What lies behind a prompt's last token was written for somebody else.
void KvSender::ClearTail(int page, int valid_tokens) {
  const KvGeometry& kv = options_.executor->kv();
  const std::span<std::byte> bytes = options_.executor->KvPage(page);
  const size_t head_bytes = kv.HeadBytes();
  const size_t valid_bytes =
      head_bytes / static_cast<size_t>(kv.page_size) * static_cast<size_t>(valid_tokens);
  for (size_t head = 0; head < bytes.size(); head += head_bytes) {
    std::memset(bytes.data() + head + valid_bytes, 0, head_bytes - valid_bytes);
  }
}

std::function<void(const absl::Status&)> KvSender::Completion(uint64_t epoch, uint64_t send_id,
                                                              const InstanceRef& decode,
                                                              int64_t bytes) {
  return [this, epoch, send_id, decode, bytes, begun_us = NowUs()](const absl::Status& status) {
    const int64_t took_us = NowUs() - begun_us;
    if (status.ok()) {
      options_.metrics->Increment(Metric::kKvTransferBytesTotal, static_cast<double>(bytes));
      options_.metrics->Observe(Metric::kKvTransferSeconds, static_cast<double>(took_us) * 1e-6);
      options_.on_event(KvSent{epoch, send_id, status, took_us, bytes});
      return;
    }
    options_.metrics->Increment(Metric::kKvTransferFailuresTotal, 1, {FailureReason(status)});
    const absl::Status lost = absl::UnavailableError(
        absl::StrCat("KV could not be sent to ", decode.id, ": ", status.message()));
    options_.on_event(KvSent{epoch, send_id, WithLeg(lost, "decode", decode.id), took_us, 0});
  };
}

void KvSender::Deliver(uint64_t epoch, uint64_t send_id, const InstanceRef& decode,
                       Outgoing message) {
  int64_t bytes = 0;
  for (const auto& run : message.runs) bytes += static_cast<int64_t>(run.size());
  message.on_sent = Completion(epoch, send_id, decode, bytes);
  const std::optional<PeerId> peer = options_.find_peer(decode);
  if (!peer.has_value()) {
    message.on_sent(absl::NotFoundError("it is not connected"));
    return;
  }
  options_.data_plane->Send(*peer, std::move(message));
}

void KvSender::Send(const SendKv& action) {
  const Ticket& ticket = action.ticket;
  const KvGeometry& kv = options_.executor->kv();
  const int end_page = action.first_page + static_cast<int>(action.pages.size());
  const int tail_tokens = ticket.prompt_tokens % kv.page_size;
  if (end_page == ticket.prompt_pages && tail_tokens != 0) {
    ClearTail(action.pages.back(), tail_tokens);
  }
  Outgoing message;
  message.kind = MessageKind::kKvPages;
  for (const int page : action.pages) message.runs.emplace_back(options_.executor->KvPage(page));
  KvDataHeader header;
  header.slot = ticket.slot;
  header.generation = ticket.generation;
  header.decode_incarnation = ticket.decode.incarnation;
  header.writer_incarnation = options_.self.incarnation;
  header.layers = layers_;
  header.first_page = action.first_page;
  header.page_count = static_cast<int>(action.pages.size());
  header.bytes = action.pages.size() * kv.PageBytes();
  header.checksum = ChecksumOf(message.runs);
  checksum_sums_[action.attempt_id] += header.checksum;
  message.header = EncodeKvData(header);
  if (absl::Status status = Failpoint("prefill.kv_send"); !status.ok()) {
    Completion(action.epoch, action.send_id, ticket.decode, 0)(status);
    return;
  }
  Deliver(action.epoch, action.send_id, ticket.decode, std::move(message));
}

void KvSender::Commit(const SendCommit& action) {
  const Ticket& ticket = action.ticket;
  KvCommit commit;
  commit.slot = ticket.slot;
  commit.generation = ticket.generation;
  commit.decode_incarnation = ticket.decode.incarnation;
  commit.writer_incarnation = options_.self.incarnation;
  commit.layers = layers_;
  commit.page_count = ticket.prompt_pages;
  commit.checksum_sum = checksum_sums_[action.attempt_id];
  commit.has_first_token = action.first_token.has_value();
  if (action.first_token.has_value()) commit.first_token = *action.first_token;
  Forget(action.attempt_id);
  Outgoing message;
  message.kind = MessageKind::kKvControl;
  message.header = EncodeKvCommit(commit);
  if (absl::Status status = Failpoint("prefill.commit_send"); !status.ok()) {
    Completion(action.epoch, action.send_id, ticket.decode, 0)(status);
    return;
  }
  Deliver(action.epoch, action.send_id, ticket.decode, std::move(message));
}

void KvSender::SendHeartbeats(const std::vector<PeerId>& decodes) {
  for (const PeerId peer : decodes) {
    Outgoing message;
    message.kind = MessageKind::kKvControl;
    message.header = EncodeKvHeartbeat({options_.self});
    options_.data_plane->Send(peer, std::move(message));
  }
}

}  // namespace baton::prefill
