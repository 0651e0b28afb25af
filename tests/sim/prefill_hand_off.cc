// How a simulated stage hands KV over: the real outbox, with messages whose content is checked at
// both ends. Plays services/prefill/stage/kv_sender.
#include <memory>
#include <numeric>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tests/sim/decode_rank.h"
#include "tests/sim/over_wire.h"
#include "tests/sim/prefill_process.h"

namespace baton::sim {
namespace {

constexpr double kKvAgain = 0.01;
constexpr double kCommitAgain = 0.05;
constexpr double kHeartbeatAgain = 0.05;
constexpr double kOfAnother = 0.01;  // Per KV message; five times as often per commit.
constexpr double kSlowExport = 0.3;
constexpr int64_t kSlowestExportUs = 3000;

std::vector<int> PagesOf(const prefill::SendKvMessage& message) {
  std::vector<int> pages(static_cast<size_t>(message.page_count));
  std::iota(pages.begin(), pages.end(), message.local_page);
  return pages;
}

}  // namespace

// The network has kept a copy, and delivers it to the process on the node by then: the same life
// of the decode service, a later one, or with the sender long gone.
void PrefillProcess::DeliverAgain(const InstanceRef& decode, double chance, const char* label,
                                  const std::function<void(DecodeRank&)>& deliver) {
  if (!world_.random().Chance(chance)) return;
  const int node = NodeOf(decode.id);
  const int64_t late_us = world_.random().Between(1000, 6'000'000);
  world_.queue().At(world_.now_us() + late_us, [world = &world_, node, label, deliver] {
    if (!world->alive(node)) return;
    world->After(node, 0, label, [world, node, deliver] {
      deliver(static_cast<DecodeRank&>(*world->process(node)));
    });
  });
}

// What says that it is of another life of the writer, for another life of the service, or of
// another grant. Bytes and checksum are right, so nothing else gives it away.
template <typename Message>
Message PrefillProcess::OfAnother(Message message) {
  switch (world_.random().Below(4)) {
    case 0:
      message.writer_incarnation ^= 1;
      break;
    case 1:
      message.decode_incarnation ^= 1;
      break;
    case 2:
      --message.generation;
      break;
    default:
      ++message.slot;
  }
  return message;
}

void PrefillProcess::HeartbeatDecodes() {
  for (const auto& [decode, endpoint] : membership_->endpoints()) {
    if (endpoint.role != Role::kDecode) continue;
    const auto beat = [self = self_](DecodeRank& rank) { rank.kv().ReceiveHeartbeat(self); };
    DeliverAgain(decode, kHeartbeatAgain, "kv heartbeat again", beat);
    if (!membership_->Lives(endpoint.endpoint)) continue;
    membership_->SendOver<DecodeRank>(
        endpoint.endpoint, 0, "kv heartbeat", [] {}, [beat](DecodeRank& rank, bool) { beat(rank); },
        [](const absl::Status&) {});
  }
  world_.After(node_, topology_.times.kv_heartbeat_us, "kv heartbeat timer",
               [this] { HeartbeatDecodes(); });
}

bool PrefillProcess::Connected(const InstanceRef& decode) const {
  const std::optional<uint64_t> endpoint = membership_->FindPeer(decode);
  return endpoint.has_value() && membership_->Lives(*endpoint);
}

void PrefillProcess::Change(
    const std::function<void(std::vector<prefill::KvOutboxAction>&)>& change) {
  std::vector<prefill::KvOutboxAction> actions;
  change(actions);
  for (const prefill::KvOutboxAction& action : actions) {
    if (const auto* kv = std::get_if<prefill::ExportKv>(&action)) witness_.See(kv->message);
    if (const auto* commit = std::get_if<prefill::SendCommitMessage>(&action)) {
      witness_.See(*commit);
    }
    if (!world_.violation().empty()) return;
    std::visit([this](const auto& act) { Perform(act); }, action);
  }
  receipt_alarm_.Set(outbox_.NextDeadlineUs());
}

void PrefillProcess::ReceiveReceipt(const KvReceipt& receipt) {
  OverWire(world_, receipt);
  if (receipt.writer != self_) {
    world_.Violate(absl::StrCat(self_.id, " gets the receipt of ", receipt.writer.id));
  }
  Change([&](auto& actions) { outbox_.OnReceipt(receipt, world_.now_us(), actions); });
}

void PrefillProcess::ReceiveGreeting(const InstanceRef& decode) {
  OverWire(world_, KvHeartbeat{decode});
  (void)membership_->Want({decode});
}

// What a stage reports closed without an error is at decode, or not waited for.
void PrefillProcess::CheckHandedOver(const prefill::RequestClosed& closed, const Ticket& ticket) {
  for (int place = 0; closed.status.ok() && place < ticket.places(); ++place) {
    if (topology_.SentTo(layers_, rank_.rank, place).size() < 1) continue;
    const InstanceRef& decode = ticket.place(place);
    const int node = NodeOf(decode.id);
    if (!world_.alive(node) || world_.incarnation(node) != decode.incarnation) continue;
    if (static_cast<DecodeRank&>(*world_.process(node)).kv().HasKv(ticket, self_)) continue;
    world_.Violate(absl::StrCat(self_.id, " is done with attempt ", closed.attempt_id, ", and ",
                                decode.id, " does not have its KV"));
  }
}

// By way of the loop's mailbox, as in the shell.
void PrefillProcess::Perform(const prefill::KvSent& sent) {
  world_.After(node_, 1, "kv sent", [this, sent] { HandleStage(sent); });
}

void PrefillProcess::MessageEnded(uint64_t message_id, const absl::Status& status) {
  witness_.Ended(message_id, status);
  Change(
      [&](auto& actions) { outbox_.MessageEnded(message_id, status, world_.now_us(), actions); });
}

// What lies behind a prompt's last token was written for another prompt.
void PrefillProcess::ClearTail(const prefill::SendKv& send) {
  const int end_page = send.first_page + static_cast<int>(send.pages.size());
  const int tail_tokens = send.ticket.prompt_tokens % topology_.page_size;
  if (end_page != send.ticket.prompt_pages || tail_tokens == 0) return;
  memory_.ClearTail(send.pages.back(), tail_tokens);
}

std::vector<uint64_t> PrefillProcess::ReadPages(const prefill::SendKvMessage& message) const {
  const auto layer_bytes =
      static_cast<int>(topology_.Layout().WithHeads(message.box.heads.size()).BytesPerLayer());
  // The layers of this part; of several whole pages: all of the box's.
  const int begin = message.box.layers.begin - layers_.begin +
                    static_cast<int>(message.offset_bytes) / layer_bytes;
  const int end = begin + static_cast<int>(message.bytes) / message.page_count / layer_bytes;
  std::vector<uint64_t> slots = memory_.Read(message.local_page, message.page_count, begin, end);
  const uint64_t sent = BitsOfHeads(topology_.kv_heads, message.box.heads);
  for (uint64_t& slot : slots) slot &= sent;
  return slots;
}

// A device takes its time, one export more than the other, and has no room now and then.
void PrefillProcess::Perform(const prefill::ExportKv& action) {
  const prefill::SendKvMessage& message = action.message;
  memory_.Hold(PagesOf(message));
  const bool slow = world_.random().Chance(kSlowExport);
  const int64_t late_us = slow ? world_.random().Between(1, kSlowestExportUs) : 1;
  world_.After(node_, late_us, "kv exported", [this, message] {
    absl::StatusOr<uint64_t> checksum = ChecksumOf(ReadPages(message));
    if (world_.random().Chance(world_.faults().compute_fail / 8)) {
      checksum = WithLeg(absl::ResourceExhaustedError("no room to export KV"), "prefill", self_.id);
      memory_.LetGo(PagesOf(message));
      witness_.Ended(message.message_id, checksum.status());
    }
    Change([&](auto& actions) {
      outbox_.Exported(message.message_id, checksum, world_.now_us(), actions);
    });
  });
}

// The transport reads the pages when it gets to them, not when it is told to.
void PrefillProcess::Perform(const prefill::SendKvMessage& message) {
  const auto read = [this, message] { return ReadPages(message); };
  KvDataHeader header;
  header.slot = message.slot;
  header.generation = message.generation;
  header.decode_incarnation = message.decode.incarnation;
  header.writer_incarnation = self_.incarnation;
  header.layers = message.box.layers;
  header.first_page = message.first_page;
  header.page_count = message.page_count;
  header.part = message.part;
  header.bytes = message.bytes;
  header.checksum = message.checksum;
  const std::vector<int> pages = PagesOf(message);
  if (membership_->Want({message.decode})) {
    world_.After(node_, kEndpointAgainUs, "kv waits for its endpoint",
                 [this, message] { Perform(message); });
    return;
  }
  if (!Connected(message.decode)) {
    memory_.LetGo(pages);
    return NotConnected(message.message_id, message.decode);
  }
  auto payload = std::make_shared<std::vector<uint64_t>>();
  membership_->SendOver<DecodeRank>(
      *membership_->FindPeer(message.decode), message.bytes, "kv",
      [this, read, payload, checksum = header.checksum, pages] {
        *payload = read();
        memory_.LetGo(pages);
        if (ChecksumOf(*payload) == checksum) return;
        world_.Violate(absl::StrCat(self_.id, ": page ", pages.front(), " or one of ", pages.size(),
                                    " changed while it was being sent"));
      },
      [header, payload](DecodeRank& decode, bool corrupt) {
        decode.kv().ReceiveKv(header, payload, corrupt, /*again=*/false);
      },
      [this, id = message.message_id](const absl::Status& status) { MessageEnded(id, status); });
  if (world_.random().Chance(kOfAnother)) {
    const auto bytes = std::make_shared<const std::vector<uint64_t>>(read());
    world_.Send<DecodeRank>(node_, NodeOf(message.decode.id), "kv of another",
                            [header = OfAnother(header), bytes](DecodeRank& decode) {
                              decode.kv().ReceiveKv(header, bytes, /*corrupt=*/false,
                                                    /*again=*/true);
                            });
  }
  DeliverAgain(message.decode, kKvAgain, "kv again", [header, payload](DecodeRank& decode) {
    if (payload->empty()) return;
    decode.kv().ReceiveKv(header, payload, /*corrupt=*/false, /*again=*/true);
  });
}

void PrefillProcess::Perform(const prefill::SendCommitMessage& message) {
  KvCommit commit;
  commit.slot = message.slot;
  commit.generation = message.generation;
  commit.decode_incarnation = message.decode.incarnation;
  commit.writer_incarnation = self_.incarnation;
  commit.writer_id = self_.id;
  commit.layers = message.layers;
  commit.page_count = message.page_count;
  commit.checksum_sum = message.checksum_sum;
  commit.has_first_token = message.first_token.has_value();
  if (message.first_token.has_value()) commit.first_token = *message.first_token;
  if (membership_->Want({message.decode})) {
    world_.After(node_, kEndpointAgainUs, "commit waits for its endpoint",
                 [this, message] { Perform(message); });
    return;
  }
  if (!Connected(message.decode)) return NotConnected(message.message_id, message.decode);
  membership_->SendOver<DecodeRank>(
      *membership_->FindPeer(message.decode), 0, "commit", [] {},
      [commit](DecodeRank& decode, bool) { decode.kv().ReceiveCommit(commit, /*again=*/false); },
      [this, id = message.message_id](const absl::Status& status) { MessageEnded(id, status); });
  if (world_.random().Chance(5 * kOfAnother)) {
    world_.Send<DecodeRank>(node_, NodeOf(message.decode.id), "commit of another",
                            [commit = OfAnother(commit)](DecodeRank& decode) {
                              decode.kv().ReceiveCommit(commit, /*again=*/true);
                            });
  }
  DeliverAgain(message.decode, kCommitAgain, "commit again",
               [commit](DecodeRank& decode) { decode.kv().ReceiveCommit(commit, /*again=*/true); });
}

void PrefillProcess::NotConnected(uint64_t message_id, const InstanceRef& decode) {
  world_.After(node_, 1, "kv has no endpoint", [this, message_id, decode] {
    const absl::Status why = absl::UnavailableError("the decode service can't be connected to");
    MessageEnded(message_id, WithLeg(Unconnected(why), "decode", decode.id));
  });
}

}  // namespace baton::sim
