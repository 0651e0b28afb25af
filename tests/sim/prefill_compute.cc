// What a simulated stage computes and passes on: the toy model's layers over the pages that the
// plan names. Plays services/prefill/stage/plan_computer and activation_channel.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/coverage.h"
#include "tests/sim/content.h"
#include "tests/sim/prefill_process.h"

namespace baton::sim {
namespace {

// Short enough that a chain is whole again in time when the last fault was such a stall.
constexpr int64_t kShortestStallUs = 50'000;
constexpr int64_t kLongestStallUs = 800'000;

}  // namespace

// ---- Pages ----

void PrefillProcess::FreePages() {
  if (planner_->pool() == nullptr) return;
  for (const int page : freed_.Take(*planner_->pool())) {
    for (int member = 0; member < topology_.members(); ++member) {
      const int node = NodeOfMember(member);
      if (!world_.alive(node)) continue;
      static_cast<PrefillProcess*>(world_.process(node))->FreePage(epoch_, page);
    }
  }
}

void PrefillProcess::FreePage(uint64_t epoch, int page) {
  if (epoch != epoch_) return;
  const std::string used = memory_.Free(page);
  if (!used.empty()) world_.Violate(absl::StrCat("I1: ", self_.id, ": ", used));
}

// ---- Computing ----

bool PrefillProcess::TakeInput(const prefill::RunCompute& compute, SimActivations& rows) {
  if (first()) {
    for (const auto& item : compute.items) {
      const Prompt& prompt = prompts_[item.item.attempt_id];
      SimActivations::Row row{item.item.attempt_id,
                              prompt.prompt_id,
                              prompt.tokens,
                              item.item.token_begin,
                              item.item.token_count,
                              0,
                              {}};
      for (int i = 0; i < row.token_count; ++i) {
        const int position = row.token_begin + i;
        row.x.push_back(Embed(oracle_.TokenAt(prompt.prompt_id, position), position));
      }
      rows.rows.push_back(std::move(row));
    }
    return true;
  }
  const SimActivationsPtr& input = submitted_.front().input;
  if (input == nullptr || input->number != compute.number || input->epoch != compute.epoch ||
      input->rows.size() != compute.items.size()) {
    world_.Violate(absl::StrCat(self_.id, " computes plan ", compute.number,
                                " on the activations of another one"));
    return false;
  }
  rows.rows = input->rows;
  for (const SimActivations::Row& row : rows.rows) {
    prompts_[row.attempt_id].prompt_id = row.prompt_id;
    prompts_[row.attempt_id].tokens = row.prompt_tokens;
  }
  return true;
}

bool PrefillProcess::ComplainOf(const prefill::PlanItem& item, const char* what) {
  world_.Violate(absl::StrCat(self_.id, " ", what, ": attempt ", item.attempt_id, ", tokens ",
                              item.token_begin, "+", item.token_count));
  return false;
}

// What the oracle says of the layers before `layer`.
bool PrefillProcess::RightAfter(int layer, const SimActivations::Row& row) {
  const Oracle::Sequence& sequence = oracle_.Of(row.prompt_id);
  for (int i = 0; i < row.token_count; ++i) {
    const uint64_t x = row.x[static_cast<size_t>(i)];
    if (x != sequence.X(row.token_begin + i, layer)) return false;
  }
  return true;
}

bool PrefillProcess::CheckItem(const prefill::RunCompute::Item& item,
                               const SimActivations::Row& row) {
  const prefill::PlanItem& planned = item.item;
  if (row.attempt_id != planned.attempt_id || row.token_begin != planned.token_begin ||
      row.token_count != planned.token_count || row.layers_done != layers_.begin) {
    return ComplainOf(planned, "computes on activations of another chunk");
  }
  const Oracle::Sequence& sequence = oracle_.Of(row.prompt_id);
  const int end = row.token_begin + row.token_count;
  const bool ends = end == sequence.inputs.prompt_tokens;
  if (end > sequence.inputs.prompt_tokens || planned.final != ends) {
    return ComplainOf(planned,
                      "takes a chunk for the last that is not, or goes past the prompt's end");
  }
  if (static_cast<int>(item.pages.size()) * topology_.page_size < end) {
    return ComplainOf(planned, "has too few pages for a chunk");
  }
  return RightAfter(layers_.begin, row) || ComplainOf(planned, "takes wrong activations in");
}

bool PrefillProcess::ComputeItem(const prefill::RunCompute::Item& item, SimActivations::Row& row) {
  if (!CheckItem(item, row)) return false;
  memory_.Forward(item.pages, row.token_begin, row.x);
  const int end = row.token_begin + row.token_count;
  submitted_.front().digests.push_back(memory_.Digest(item.pages, end));
  row.layers_done = layers_.end;
  return RightAfter(layers_.end, row) || ComplainOf(item.item, "attends to foreign or missing KV");
}

prefill::ComputeFinished::Prompt PrefillProcess::TellPrompt(const SimActivations::Row& row) {
  prefill::ComputeFinished::Prompt prompt;
  prompt.told.attempt_id = row.attempt_id;
  prompt.told.first = row.token_begin + 1;
  const int end = std::min(row.token_begin + row.token_count + 1, row.prompt_tokens);
  for (int i = prompt.told.first; i < end; ++i) {
    const uint64_t before = row.x[static_cast<size_t>(i - 1 - row.token_begin)];
    prompt.told.tokens.push_back(TellPromptToken(row.prompt_id, i, before));
  }
  if (world_.random().Chance(3 * world_.faults().compute_fail)) {
    prompt.status = absl::InternalError("a logit is not finite");
  }
  return prompt;
}

// From now on the executor may read and write all of this, whatever becomes of the epoch.
void PrefillProcess::Submit(const prefill::RunCompute& compute) {
  if (topology_.ranks > 1)
    groups_.Submitted(KeyOf(compute.epoch), compute.number, DigestOf(compute));
  submitted_.push_back(
      {compute, first() ? nullptr : inputs_[compute.number % inputs_.size()], {}, 0});
  for (const prefill::RunCompute::Item& item : compute.items) memory_.Hold(item.pages);
  if (submitted_.size() == 1) BeginCompute();
}

bool PrefillProcess::InputStands(const Submitted& plan) const {
  const bool same_epoch = plan.compute.epoch == epoch_;
  return !same_epoch || first() || inputs_[plan.compute.number % inputs_.size()] == plan.input;
}

// What is drawn and told where the last layer has run.
prefill::ComputeFinished PrefillProcess::ResultOf(const prefill::RunCompute& compute,
                                                  const SimActivations& output) {
  prefill::ComputeFinished done;
  done.epoch = compute.epoch;
  done.number = compute.number;
  for (size_t i = 0; draws() && i < compute.items.size(); ++i) {
    const SimActivations::Row& row = output.rows[i];
    if (WantsPromptTokens(row.prompt_id)) done.prompts.push_back(TellPrompt(row));
    if (!compute.items[i].item.final) continue;
    if (world_.random().Chance(world_.faults().compute_fail / 4)) {
      done.drawn.emplace_back(absl::InternalError("no logit is finite"));
    } else {
      done.drawn.emplace_back(DrawToken(row.x.back(), row.prompt_id, 0));
    }
  }
  return done;
}

// t(L, x) = c + p L + b x + a (2 L x + x x), per layer: Topology::CostOf.
int64_t PrefillProcess::DrawCost(const prefill::RunCompute& compute) {
  int64_t cost_us = 100;
  for (const prefill::RunCompute::Item& item : compute.items) {
    const int64_t x = item.item.token_count;
    const int64_t before = item.item.token_begin;
    cost_us += layers_.size() * (before / 50 + x * 4 + (2 * before * x + x * x) / 400);
  }
  cost_us = cost_us * topology_.compute_factor + world_.random().Between(0, cost_us / 10);
  if (world_.now_us() < topology_.changes_at_us) return cost_us;
  if (topology_.unsteady) return cost_us * world_.random().Between(1, 8);
  return last() ? cost_us * Topology::kSlowdown : cost_us;
}

absl::Status PrefillProcess::DrawFailure() {
  const bool fails = world_.random().Chance(world_.faults().compute_fail / 2);
  return fails ? absl::ResourceExhaustedError("the executor failed") : absl::OkStatus();
}

// A device that stands still, and with it all that waits behind this plan: epochs end meanwhile.
int64_t PrefillProcess::DrawStall() {
  if (!world_.random().Chance(2 * world_.faults().compute_fail)) return 0;
  return world_.random().Between(kShortestStallUs, kLongestStallUs);
}

void PrefillProcess::BeginCompute() {
  submitted_.front().begun_us = world_.now_us();
  const prefill::RunCompute& compute = submitted_.front().compute;
  if (!InputStands(submitted_.front())) {
    world_.Violate(absl::StrCat(self_.id, ": plan ", compute.number,
                                "'s input buffer is filled again before it is computed on"));
  }
  if (topology_.ranks > 1) return BeginTogether();
  auto output = std::make_shared<SimActivations>();
  output->epoch = compute.epoch;
  output->number = compute.number;
  if (!TakeInput(compute, *output)) return;
  for (size_t i = 0; i < compute.items.size(); ++i) {
    if (!ComputeItem(compute.items[i], output->rows[i])) return;
  }
  prefill::ComputeFinished done = ResultOf(compute, *output);
  outputs_[compute.number % outputs_.size()] = std::move(output);
  const int64_t cost_us = DrawCost(compute);
  done.status = DrawFailure();
  done.compute_us = cost_us + DrawStall();
  world_.After(node_, done.compute_us, "computed", [this, done] { EndCompute(done); });
}

// The kernels read and write until their end: what they have used must still be there.
void PrefillProcess::EndCompute(const prefill::ComputeFinished& done) {
  const Submitted computed = std::move(submitted_.front());
  submitted_.pop_front();
  const bool ran = !computed.digests.empty();  // Not if the other ranks did not come to it.
  for (size_t i = 0; i < computed.compute.items.size(); ++i) {
    const auto& item = computed.compute.items[i];
    const int end = item.item.token_begin + item.item.token_count;
    if (ran && memory_.Digest(item.pages, end) != computed.digests[i]) {
      world_.Violate(absl::StrCat(self_.id, ": the pages of attempt ", item.item.attempt_id,
                                  " change while they are computed on"));
    }
    memory_.LetGo(item.pages);
  }
  if (!InputStands(computed)) {
    world_.Violate(absl::StrCat(self_.id, ": plan ", done.number,
                                "'s input buffer is filled again while it is computed on"));
  }
  if (!submitted_.empty()) BeginCompute();  // It does not wait for anybody to hear of this end.
  unchecked_.push_back(done);
  TellComputed();
}

// A result is held back until its input's checksum has come, or the epoch is over.
void PrefillProcess::TellComputed() {
  while (!unchecked_.empty()) {
    prefill::ComputeFinished done = unchecked_.front();
    if (!first() && done.epoch == epoch_) {
      const Sum& sum = sums_[done.number % sums_.size()];
      if (sum.number != done.number || !sum.came || sum.damaged) {
        Covered<"input: what was computed waits for its checksum">();
        return;
      }
    } else if (!first() && done.status.ok()) {
      Covered<"input: what was computed ends unchecked with its epoch">();
      done.status = absl::CancelledError("the epoch is over");
    }
    unchecked_.pop_front();
    HandleStage(done);
  }
}

// ---- Activations ----

void PrefillProcess::SendActivations(const prefill::SendActivations& send) {
  auto payload = std::make_shared<SimActivationsPtr>();
  const SimActivationsPtr output = outputs_[send.number % outputs_.size()];
  if (output == nullptr || output->number != send.number || output->epoch != send.epoch) {
    return world_.Violate(absl::StrCat(self_.id, " passes on plan ", send.number,
                                       ", and its output buffer holds another one"));
  }
  int tokens = 0;
  for (const SimActivations::Row& row : output->rows) tokens += row.token_count;
  if (tokens != send.token_count) {
    return world_.Violate(absl::StrCat(self_.id, " passes on ", send.token_count, " tokens of ",
                                       tokens, " of plan ", send.number));
  }
  if (!membership_->Lives(neighbours_.next()->endpoint)) {
    world_.After(node_, 1, "activations have no endpoint", [this, send] {
      HandleStage(prefill::ActivationsSent{send.epoch, send.number,
                                           absl::UnavailableError("the endpoint is dead")});
    });
    return;
  }
  membership_->SendOver<PrefillProcess>(
      neighbours_.next()->endpoint, 1, "activations",
      [this, payload, output, send] {
        *payload = output;
        if (send.epoch != epoch_ || outputs_[send.number % outputs_.size()] == output) return;
        world_.Violate(absl::StrCat(self_.id, ": plan ", send.number,
                                    "'s output buffer is filled again while it is sent"));
      },
      [payload](PrefillProcess& peer, bool corrupt) { peer.ReceiveActivations(*payload, corrupt); },
      [this, send, endpoint = neighbours_.next()->endpoint, output](const absl::Status& status) {
        if (status.ok()) return SendSum(send, endpoint, output);
        HandleStage(prefill::ActivationsSent{send.epoch, send.number, status});
      });
}

// Their checksum, which is taken once they have gone: until then the buffer is theirs.
void PrefillProcess::SendSum(const prefill::SendActivations& send, uint64_t endpoint,
                             const SimActivationsPtr& output) {
  const auto ended = [this, send](const absl::Status& status) {
    HandleStage(prefill::ActivationsSent{send.epoch, send.number, status});
  };
  if (!membership_->Lives(endpoint)) return ended(absl::UnavailableError("the endpoint is dead"));
  membership_->SendOver<PrefillProcess>(
      endpoint, 1, "checksum of activations",
      [this, send, output] {
        if (send.epoch != epoch_ || outputs_[send.number % outputs_.size()] == output) return;
        world_.Violate(absl::StrCat(self_.id, ": plan ", send.number,
                                    "'s output buffer is filled again while it is hashed"));
      },
      [send](PrefillProcess& peer, bool corrupt) {
        if (!corrupt) peer.ReceiveSum(send.epoch, send.number);  // Else it cannot be read.
      },
      ended);
}

void PrefillProcess::ReceiveActivations(const SimActivationsPtr& activations, bool corrupt) {
  if (activations->epoch != epoch_ || StrikeWithActivations(activations->number)) return;
  inputs_[activations->number % inputs_.size()] = activations;
  Sum& sum = sums_[activations->number % sums_.size()];
  if (sum.number != activations->number) sum = {activations->number};
  sum.damaged = corrupt;
  if (corrupt) Covered<"input: it is damaged">();
  const uint64_t epoch = epoch_;
  HandleStage(prefill::ActivationsArrived{activations->epoch, activations->number});
  if (epoch == epoch_) Check(activations->number);
}

void PrefillProcess::ReceiveSum(uint64_t epoch, uint64_t number) {
  if (epoch != epoch_ || epoch == 0) return;
  Sum& sum = sums_[number % sums_.size()];
  if (sum.number != number) {
    Covered<"input: its checksum comes first">();
    sum = {number};
  }
  sum.came = true;
  Check(number);
}

// Both are hashed while the plan is being computed. If the two differ, nothing sound can follow in
// this epoch.
void PrefillProcess::Check(uint64_t number) {
  const Sum& sum = sums_[number % sums_.size()];
  const SimActivationsPtr& input = inputs_[number % inputs_.size()];
  if (!sum.came || input == nullptr || input->number != number) return;
  if (sum.damaged) return FailEpoch(absl::DataLossError("activations are damaged"));
  TellComputed();
}

void PrefillProcess::ReceiveCredit(uint64_t epoch, uint64_t number) {
  if (epoch != epoch_ || epoch == 0 || StrikeWithCredit()) return;
  HandleStage(prefill::CreditReturned{epoch, number});
}

}  // namespace baton::sim
