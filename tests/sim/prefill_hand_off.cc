// How a simulated stage hands KV over: the real outbox, with messages whose content is checked at
// both ends. Plays services/prefill/stage/kv_sender.
#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "tests/sim/content.h"
#include "tests/sim/decode_process.h"
#include "tests/sim/prefill_process.h"

namespace baton::sim {

void PrefillProcess::Change(
    const std::function<void(std::vector<prefill::KvOutboxAction>&)>& change) {
  std::vector<prefill::KvOutboxAction> actions;
  change(actions);
  for (const prefill::KvOutboxAction& action : actions) {
    std::visit([this](const auto& act) { Perform(act); }, action);
  }
  ScheduleReceiptTick();
}

void PrefillProcess::ScheduleReceiptTick() {
  if (outbox_.NextDeadlineUs() == kNeverUs) return;
  const int64_t due_us = std::max(outbox_.NextDeadlineUs(), world_.now_us());
  if (due_us >= receipt_tick_us_) return;
  receipt_tick_us_ = due_us;
  world_.After(node_, due_us - world_.now_us(), "receipt tick", [this, due_us] {
    if (receipt_tick_us_ == due_us) receipt_tick_us_ = kNeverUs;
    Change([&](auto& actions) { outbox_.Tick(world_.now_us(), actions); });
  });
}

void PrefillProcess::ReceiveReceipt(const KvReceipt& receipt) {
  if (receipt.writer != self_) {
    world_.Violate(absl::StrCat(self_.id, " gets the receipt of ", receipt.writer.id));
  }
  Change([&](auto& actions) { outbox_.OnReceipt(receipt, world_.now_us(), actions); });
}

// What a stage reports closed without an error is at decode, or nobody waits for it.
void PrefillProcess::CheckHandedOver(const prefill::RequestClosed& closed, const Ticket& ticket) {
  const int node = NodeOf(ticket.decode.id);
  if (!closed.status.ok() || !world_.alive(node) ||
      world_.incarnation(node) != ticket.decode.incarnation) {
    return;
  }
  const auto& decode = static_cast<const DecodeProcess&>(*world_.process(node));
  if (decode.HasKv(ticket, layers_)) return;
  world_.Violate(absl::StrCat(self_.id, " is done with attempt ", closed.attempt_id, ", and ",
                              ticket.decode.id, " does not have its KV"));
}

// By way of the loop's mailbox, as in the shell.
void PrefillProcess::Perform(const prefill::KvSent& sent) {
  world_.After(node_, 1, "kv sent", [this, sent] { HandleStage(sent); });
}

void PrefillProcess::MessageEnded(uint64_t message_id, const absl::Status& status) {
  Change(
      [&](auto& actions) { outbox_.MessageEnded(message_id, status, world_.now_us(), actions); });
}

void PrefillProcess::Perform(const prefill::SendKvMessage& message) {
  Prompt& prompt = prompts_[message.attempt_id];
  const int layer_bytes = static_cast<int>(topology_.Layout().BytesPerLayer());
  // The layers of this part; of several whole pages: all.
  const int begin = layers_.begin + static_cast<int>(message.offset_bytes) / layer_bytes;
  const int end = begin + static_cast<int>(message.bytes) / message.page_count / layer_bytes;
  std::vector<uint64_t> content;
  std::vector<uint64_t> bands;
  for (int i = 0; i < message.page_count; ++i) {
    const int page = message.first_page + i;
    const int tokens = TokensInPage(prompt.tokens, page, topology_.page_size);
    bands.push_back(pages_[message.local_page + i]);
    for (int layer = begin; layer < end; ++layer) {
      content.push_back(KvContent(prompt.prompt_id, page, tokens, layer));
    }
  }
  const Ticket& ticket = message.ticket;
  KvDataHeader header;
  header.slot = ticket.slot;
  header.generation = ticket.generation;
  header.decode_incarnation = ticket.decode.incarnation;
  header.writer_incarnation = self_.incarnation;
  header.layers = layers_;
  header.first_page = message.first_page;
  header.page_count = message.page_count;
  header.part = message.part;
  header.bytes = message.bytes;
  for (const uint64_t value : content) header.checksum = Mix64(header.checksum ^ value);
  prompt.checksum_sum += header.checksum;
  world_.SendData<DecodeProcess>(
      node_, NodeOf(ticket.decode.id), ticket.decode.incarnation, message.bytes, "kv",
      [this, message, bands] {
        for (size_t i = 0; i < bands.size(); ++i) {
          const auto page = static_cast<size_t>(message.local_page) + i;
          if (pages_[page] == bands[i]) continue;
          world_.Violate(
              absl::StrCat(self_.id, ": page ", page, " changed while it was being sent"));
        }
      },
      [header, content](DecodeProcess& decode, bool corrupt) {
        decode.ReceiveKv(header, content, corrupt);
      },
      [this, id = message.message_id](const absl::Status& status) { MessageEnded(id, status); });
}

void PrefillProcess::Perform(const prefill::SendCommitMessage& message) {
  const Ticket& ticket = message.ticket;
  KvCommit commit;
  commit.slot = ticket.slot;
  commit.generation = ticket.generation;
  commit.decode_incarnation = ticket.decode.incarnation;
  commit.writer_incarnation = self_.incarnation;
  commit.writer_id = self_.id;
  commit.layers = layers_;
  commit.page_count = ticket.prompt_pages;
  commit.checksum_sum = prompts_[message.attempt_id].checksum_sum;
  commit.has_first_token = message.first_token.has_value();
  if (message.first_token.has_value()) commit.first_token = *message.first_token;
  world_.SendData<DecodeProcess>(
      node_, NodeOf(ticket.decode.id), ticket.decode.incarnation, 0, "commit", [] {},
      [commit](DecodeProcess& decode, bool) { decode.ReceiveCommit(commit); },
      [this, id = message.message_id](const absl::Status& status) { MessageEnded(id, status); });
}

}  // namespace baton::sim
