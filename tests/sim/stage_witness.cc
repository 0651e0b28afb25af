#include "tests/sim/stage_witness.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace baton::sim {

StageWitness::StageWitness(World& world, const Topology& topology, std::string self,
                           const prefill::StageOptions& stage,
                           const prefill::KvOutboxOptions& outbox)
    : world_(world),
      topology_(topology),
      self_(std::move(self)),
      draws_(stage.stage + 1 == topology.stages && stage.tensor_rank.rank == 0),
      writes_kv_(topology.WritesKv(stage.tensor_rank.rank)),
      layers_(topology.StageLayers(stage.stage)),
      rank_(stage.tensor_rank.rank),
      outbox_(outbox) {}

std::set<InstanceRef> StageWitness::ReceiversOf(const Ticket& ticket) const {
  std::set<InstanceRef> receivers;
  for (int place = 0; place < topology_.decode_members(); ++place) {
    if (topology_.SentTo(layers_, rank_, place).size() > 0) receivers.insert(ticket.place(place));
  }
  return receivers;
}

// -1: it is none of the ticket's that this one has layers and heads for.
int StageWitness::PlaceIn(const Ticket& ticket, const InstanceRef& decode) const {
  for (int place = 0; place < ticket.places(); ++place) {
    if (ticket.place(place) == decode && topology_.SentTo(layers_, rank_, place).size() > 0) {
      return place;
    }
  }
  return -1;
}

template <typename Sent>
bool StageWitness::IsOf(const Sent& sent, const Ticket& ticket) {
  return sent.slot == ticket.slot && sent.generation == ticket.generation;
}

size_t StageWitness::PageBytes(int place) const {
  const int heads = topology_.CommonHeads(rank_, place % topology_.decode_ranks).size();
  return topology_.Layout().WithHeads(heads).BandBytes(topology_.SentTo(layers_, rank_, place));
}

void StageWitness::Complain(uint64_t attempt_id, const std::string& what) {
  world_.Violate(absl::StrCat(self_, ", attempt ", attempt_id, ": ", what));
}

void StageWitness::Begin(uint64_t epoch) {
  if (epoch <= epoch_) world_.Violate(absl::StrCat(self_, " begins an older epoch"));
  epoch_ = epoch;
  ended_ = false;
  last_arrived_ = last_done_ = 0;
  plans_.clear();
  requests_.clear();
  sends_.clear();
  compute_us_.clear();
  submitted_.clear();
}

// What is out of turn the stage answers with the end of the epoch.
void StageWitness::Arrived(const prefill::Plan& plan) {
  if (ended_ || plan.epoch != epoch_ || plan.number != last_arrived_ + 1) return;
  last_arrived_ = plan.number;
  plans_[plan.number] = plan;
  for (const prefill::PlanOpen& open : plan.opens) requests_[open.attempt_id].open = open;
}

StageWitness::Request* StageWitness::Find(uint64_t attempt_id) {
  const auto found = requests_.find(attempt_id);
  if (found != requests_.end() && !ended_) return &found->second;
  Complain(attempt_id, "is acted on, and was never opened, or its epoch is over");
  return nullptr;
}

// ---- The stage ----

void StageWitness::See(const prefill::RunCompute& action) {
  const auto plan = plans_.find(action.number);
  if (action.epoch != epoch_ || plan == plans_.end() || action.number <= last_done_ ||
      plan->second.items.size() != action.items.size()) {
    return world_.Violate(
        absl::StrCat(self_, " computes plan ", action.number, " twice, or one that did not come"));
  }
  if (!submitted_.empty() && submitted_.rbegin()->first >= action.number) {
    world_.Violate(absl::StrCat(self_, " submits plan ", action.number, " out of order"));
  }
  submitted_[action.number] = plan->second;
  if (submitted_.size() > static_cast<size_t>(topology_.plans_in_flight)) {
    world_.Violate(absl::StrCat(self_, " has ", submitted_.size(), " plans with its executor"));
  }
  for (size_t i = 0; i < action.items.size(); ++i) {
    const prefill::PlanItem& planned = plan->second.items[i];
    const prefill::RunCompute::Item& run = action.items[i];
    const Request* const request = Find(planned.attempt_id);
    if (request == nullptr) return;
    const bool same =
        run.item.attempt_id == planned.attempt_id && run.item.token_begin == planned.token_begin &&
        run.item.token_count == planned.token_count && run.item.final == planned.final;
    const int end = planned.token_begin + planned.token_count;
    const auto pages = static_cast<size_t>((end - 1) / topology_.page_size) + 1;
    if (!same || run.pages.size() != pages ||
        !std::equal(run.pages.begin(), run.pages.end(), request->open.pages.begin())) {
      Complain(planned.attempt_id, "is computed otherwise than planned");
    }
  }
}

void StageWitness::See(const prefill::SendKv& action) {
  Request* const request = Find(action.attempt_id);
  if (request == nullptr) return;
  const std::vector<int>& pages = request->open.pages;
  const bool fits =
      static_cast<size_t>(action.first_page) == request->pages_sent &&
      request->pages_sent + action.pages.size() <= pages.size() &&
      std::equal(action.pages.begin(), action.pages.end(), pages.begin() + action.first_page);
  // An abort may have been applied meanwhile: then the outbox ends what comes.
  if (!writes_kv_) Complain(action.attempt_id, "is handed over by a rank that has copies");
  if (!fits || request->closed || action.ticket != request->open.ticket) {
    Complain(action.attempt_id,
             absl::StrCat("sends pages ", action.first_page, "+", action.pages.size(), " after ",
                          request->pages_sent, ", or after its end"));
  }
  request->pages_sent += action.pages.size();
  request->pieces_end.insert(request->pages_sent);
  sends_[action.send_id] = action.attempt_id;
}

void StageWitness::See(const prefill::SendCommit& action) {
  Request* const request = Find(action.attempt_id);
  if (request == nullptr) return;
  const bool whole = request->pages_sent == request->open.pages.size();
  if (!whole || request->closed || std::exchange(request->commit_due, true) ||
      action.first_token.has_value() != draws_) {
    Complain(action.attempt_id, "is committed twice, before its last page, or after its end");
  }
  sends_[action.send_id] = action.attempt_id;
}

void StageWitness::Hear(const prefill::KvSent& event) {
  const auto send = sends_.find(event.send_id);
  if (event.epoch != epoch_ || ended_ || send == sends_.end()) return;
  const auto found = requests_.find(send->second);
  sends_.erase(send);
  if (found == requests_.end()) return;
  Request& request = found->second;
  request.bytes += event.bytes;
  request.transfer_us += event.transfer_us;
  if (request.computed_us >= 0) request.exposed_us = world_.now_us() - request.computed_us;
}

void StageWitness::Hear(const prefill::ComputeFinished& event) {
  const auto plan = plans_.find(event.number);
  if (event.epoch != epoch_ || ended_ || plan == plans_.end()) return;
  submitted_.erase(event.number);
  compute_us_[event.number] = event.compute_us;
  for (const prefill::PlanItem& item : plan->second.items) {
    const auto request = requests_.find(item.attempt_id);
    if (item.final && request != requests_.end()) request->second.computed_us = world_.now_us();
  }
}

// An abort has taken effect: its pages are soon another prompt's.
void StageWitness::CheckNotComputed(uint64_t attempt_id) {
  for (const auto& [number, plan] : submitted_) {
    for (const prefill::PlanItem& item : plan.items) {
      if (item.attempt_id != attempt_id) continue;
      Complain(attempt_id,
               absl::StrCat("I1: its abort overtakes plan ", number, ", which reads its pages"));
    }
  }
}

void StageWitness::See(const prefill::CancelKv& action) {
  CheckNotComputed(action.attempt_id);
  if (Request* const request = Find(action.attempt_id)) request->over = true;
}

void StageWitness::See(const prefill::ReportPlanDone& action) {
  if (action.epoch != epoch_ || action.done.number != last_done_ + 1) {
    world_.Violate(
        absl::StrCat(self_, " is done with plan ", action.done.number, " after ", last_done_));
  }
  if (compute_us_.contains(action.done.number) &&
      action.done.compute_us != compute_us_[action.done.number]) {
    world_.Violate(absl::StrCat(self_, " says that a plan took another time than it did"));
  }
  last_done_ = action.done.number;
  compute_us_.erase(action.done.number);
  plans_.erase(action.done.number);
}

void StageWitness::See(const prefill::ReportRequestClosed& action) {
  Request* const request = Find(action.closed.attempt_id);
  if (request == nullptr) return;
  if (absl::IsCancelled(action.closed.status)) CheckNotComputed(action.closed.attempt_id);
  if (std::exchange(request->closed, true)) {
    Complain(action.closed.attempt_id, "I2: is closed twice");
  }
  if (action.closed.status.ok() && request->commits_sent != ReceiversOf(*request->open.ticket)) {
    Complain(action.closed.attempt_id, "is closed well, and was not committed");
  }
  if (action.closed.kv_bytes != request->bytes ||
      action.closed.kv_transfer_us != request->transfer_us ||
      action.closed.kv_exposed_us != request->exposed_us) {
    Complain(action.closed.attempt_id, "has a report of other bytes or times than it took");
  }
  for (const auto& [id, message] : messages_) {
    if (message.attempt_id != action.closed.attempt_id) continue;
    Complain(action.closed.attempt_id, "I1: is closed while it is sent");
  }
  request->over = true;
}

// ---- The outbox ----

void StageWitness::See(const prefill::SendKvMessage& action) {
  Request* const request = Find(action.attempt_id);
  if (request == nullptr) return;
  const int place = PlaceIn(*request->open.ticket, action.decode);
  if (request->over || request->lost || !IsOf(action, *request->open.ticket) || place < 0 ||
      action.box.heads != topology_.CommonHeads(rank_, place % topology_.decode_ranks) ||
      action.box.layers != topology_.SentTo(layers_, rank_, place)) {
    return Complain(action.attempt_id,
                    "KV leaves after the end, for another ticket, or to a rank "
                    "that it is not for");
  }
  const size_t page_bytes = PageBytes(place);
  const size_t before = static_cast<size_t>(action.part) * outbox_.part_bytes;
  const size_t bytes = page_bytes > outbox_.part_bytes
                           ? std::min(outbox_.part_bytes, page_bytes - before)
                           : page_bytes * static_cast<size_t>(action.page_count);
  if (action.bytes != bytes || action.offset_bytes != before ||
      (page_bytes > outbox_.part_bytes && action.page_count != 1)) {
    Complain(action.attempt_id, absl::StrCat("sends ", action.bytes, " bytes from ",
                                             action.offset_bytes, " on, it is ", bytes));
  }
  for (int i = 0; i < action.page_count; ++i) {
    const auto page = static_cast<size_t>(action.first_page) + static_cast<size_t>(i);
    if (page >= request->pages_sent || request->open.pages[page] != action.local_page + i) {
      return Complain(action.attempt_id, absl::StrCat("page ", page, " of the prompt is sent from ",
                                                      action.local_page + i));
    }
    if (!request->parts[action.decode].emplace(static_cast<int>(page), action.part).second) {
      Complain(action.attempt_id, absl::StrCat("page ", page, " is sent twice"));
    }
  }
  const auto next = static_cast<size_t>(action.first_page) + static_cast<size_t>(action.page_count);
  if (!request->pieces_end.contains(next) && page_bytes <= outbox_.part_bytes &&
      bytes + page_bytes <= std::min(outbox_.merged_bytes, outbox_.part_bytes) &&
      request->open.pages[next] == action.local_page + action.page_count) {
    Complain(action.attempt_id, absl::StrCat("page ", next, " would go with those before it"));
  }
  messages_[action.message_id] = {action.attempt_id, action.decode, action.bytes};
  CheckWindow(action.decode);
}

void StageWitness::CheckWindow(const InstanceRef& decode) {
  int messages = 0;
  size_t bytes = 0;
  for (const auto& [id, message] : messages_) {
    if (message.decode != decode || message.bytes == 0) continue;
    ++messages;
    bytes += message.bytes;
  }
  if (messages <= 1) return;
  if (messages <= outbox_.window_messages && bytes <= outbox_.window_bytes) return;
  world_.Violate(absl::StrCat(self_, " has ", messages, " messages of ", bytes,
                              " bytes under way to ", decode.id));
}

void StageWitness::See(const prefill::SendCommitMessage& action) {
  Request* const request = Find(action.attempt_id);
  if (request == nullptr) return;
  messages_[action.message_id] = {action.attempt_id, action.decode, 0};
  const int place = PlaceIn(*request->open.ticket, action.decode);
  if (place < 0) {
    return Complain(action.attempt_id, "is committed to a rank that it is not for");
  }
  if (action.again) {
    if (!request->commits_sent.contains(action.decode))
      Complain(action.attempt_id, "asks after a commit that never left");
    return;
  }
  const size_t parts_per_page = (PageBytes(place) + outbox_.part_bytes - 1) / outbox_.part_bytes;
  const size_t all = request->open.pages.size() * parts_per_page;
  const size_t sent = request->parts[action.decode].size();
  const bool first = request->commits_sent.insert(action.decode).second;
  if (sent != all || request->over || request->lost || !request->commit_due || !first ||
      !IsOf(action, *request->open.ticket) ||
      action.page_count != request->open.ticket->prompt_pages) {
    Complain(action.attempt_id,
             absl::StrCat("its commit leaves twice, late, or after ", sent, " of ", all, " parts"));
  }
}

void StageWitness::Ended(uint64_t message_id, const absl::Status& status) {
  const auto found = messages_.find(message_id);
  const uint64_t attempt_id = found->second.attempt_id;
  messages_.erase(found);
  if (status.ok()) return;
  if (const auto request = requests_.find(attempt_id); request != requests_.end()) {
    request->second.lost = true;
  }
}

}  // namespace baton::sim
