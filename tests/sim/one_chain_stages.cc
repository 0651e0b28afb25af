// The chain's stages: what they do with their buffers, pages and neighbours.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/one_chain.h"

namespace baton::sim {

using prefill::ComputeFinished;
using prefill::PlanItem;
using prefill::RunCompute;

uint64_t OneChain::OutputCount() const {
  return static_cast<uint64_t>(prefill::OutputBuffers(settings_.plans_in_flight));
}

SampledToken OneChain::PromptToken(uint64_t request, int position) {
  return {position, -static_cast<float>(request), {}};
}

void OneChain::ToStage(size_t i, const prefill::StageEvent& event) {
  const auto* arrived = std::get_if<prefill::PlanArrived>(&event);
  if (arrived != nullptr && arrived->plan.epoch == epoch_) Open(i, arrived->plan);
  std::vector<prefill::StageAction> actions;
  stages_[i]->Handle(event, now_us_, actions);
  const absl::Status sound = stages_[i]->CheckInvariants();
  Holds(sound.ok(), sound.ToString());
  for (const prefill::StageAction& action : actions) {
    if (!violation_.empty()) return;
    std::visit([this, i](const auto& a) { Perform(i, a); }, action);
  }
}

// What has been told of a text when its request begins again is read again.
void OneChain::Open(size_t i, const prefill::Plan& plan) {
  for (const prefill::PlanOpen& open : plan.opens) {
    const Attempt& attempt = attempts_.at(open.attempt_id);
    if (!open.drawn.empty()) {
      const std::vector<int32_t>& text = requests_.at(RequestOf(open.attempt_id)).text;
      const size_t before = static_cast<size_t>(attempt.told_before);
      const bool same =
          text.size() == before + open.drawn.size() &&
          std::equal(open.drawn.begin(), open.drawn.end(), text.begin() + attempt.told_before);
      Holds(same, absl::StrCat("attempt ", open.attempt_id, " begins again with another text"));
    }
    processes_[i].read[open.attempt_id] = open.read_tokens();
    processes_[i].computed[open.attempt_id] = open.cached_tokens;
  }
}

void OneChain::Perform(size_t i, const RunCompute& run) {
  Process& process = processes_[i];
  Holds(run.number > process.last_computed, "a plan is computed out of turn, or twice");
  process.last_computed = run.number;
  const auto credits = static_cast<uint64_t>(settings_.credits);
  Holds(i == 0 || process.inputs[run.number % credits] == run.number, "a wrong input");
  if (i + 1 < stages_.size()) {
    Holds(!process.outputs.contains(run.number % OutputCount()), "the output buffer is in use");
    process.outputs[run.number % OutputCount()] = run.number;
  }
  Holds(++process.with_executor <= settings_.plans_in_flight, "too many plans in the executor");
  most_with_executor_ = std::max(most_with_executor_, process.with_executor);
  ComputeFinished finished{run.epoch, run.number, absl::OkStatus(), 1, {}, {}};
  for (const RunCompute::Item& item : run.items) Compute(i, item, finished);
  // One after another, in the order in which they came.
  const int64_t takes_us = random_.Between(1, 100);
  process.executor_free_us = std::max(process.executor_free_us, now_us_) + takes_us;
  AtProcess(i, process.executor_free_us, [this, i, finished] {
    --processes_[i].with_executor;
    ToStage(i, finished);
  });
}

void OneChain::Compute(size_t i, const RunCompute::Item& item, ComputeFinished& finished) {
  Process& process = processes_[i];
  const uint64_t attempt_id = item.item.attempt_id;
  const Attempt& attempt = attempts_.at(attempt_id);
  const uint64_t request = RequestOf(attempt_id);
  const int begin = item.item.token_begin;
  const int end = begin + item.item.token_count;
  const auto fails = [&](const char* what) {
    Complain(absl::StrCat("attempt ", attempt_id, " at ", begin, ": ", what));
  };
  int& computed = process.computed[attempt_id];
  if (computed != begin) return fails("the tokens before are not computed");
  computed = end;
  if (item.pages.size() != static_cast<size_t>((end + kChainPageSize - 1) / kChainPageSize)) {
    return fails("too few pages, or too many");
  }
  for (size_t p = static_cast<size_t>(begin / kChainPageSize); p < item.pages.size(); ++p) {
    if (process.reading[item.pages[p]] > 0) fails("a page that is being sent is overwritten");
  }
  ReadAndWrite(process, item);
  const bool decodes = begin >= process.read.at(attempt_id);
  if (item.decodes != decodes) fails("a chunk is taken for a decode step, or the other way round");
  if (item.generated != std::max(end - attempt.prompt_tokens, 0)) fails("another draw");
  const bool ahead = item.item.token == prefill::kTokenAhead;
  const int32_t fed = ahead ? process.last_drawn[attempt_id] : item.item.token;
  if (decodes && fed != NextToken(request, begin - 1)) fails("another token is fed");
  if (i + 1 < stages_.size()) return;
  if (item.item.final || item.item.draws) {
    const int32_t next = process.last_drawn[attempt_id] = NextToken(request, end - 1);
    finished.drawn.emplace_back(SampledToken{next, 0, {}});
  }
  const bool read_first = process.read.at(attempt_id) == attempt.prompt_tokens;
  if (!decodes && read_first && attempt.wants_prompt) TellPrompt(item.item, finished);
}

// The item reads what is before it, and writes its own.
void OneChain::ReadAndWrite(Process& process, const RunCompute::Item& item) {
  const uint64_t request = RequestOf(item.item.attempt_id);
  const int begin = item.item.token_begin;
  for (int i = 0; i < begin + item.item.token_count; ++i) {
    const int page = item.pages[static_cast<size_t>(i / kChainPageSize)];
    int64_t& kv = process.kv.try_emplace(page)
                      .first->second.try_emplace(i % kChainPageSize, -1)
                      .first->second;
    if (i >= begin) kv = KvAt(request, i);
    if (kv == KvAt(request, i)) continue;
    return Complain(absl::StrCat("attempt ", item.item.attempt_id, " at ", begin,
                                 " reads another's KV at ", i));
  }
}

void OneChain::TellPrompt(const PlanItem& item, ComputeFinished& finished) {
  ComputeFinished::Prompt prompt{{item.attempt_id, item.token_begin + 1, {}}, absl::OkStatus()};
  const int end = item.token_begin + item.token_count + (item.final || item.draws ? 0 : 1);
  for (int i = prompt.told.first; i < end; ++i) {
    prompt.told.tokens.push_back(PromptToken(RequestOf(item.attempt_id), i));
  }
  if (random_.Chance(settings_.send_error_chance)) prompt.status = absl::InternalError("NaN");
  finished.prompts.push_back(std::move(prompt));
}

void OneChain::Perform(size_t i, const prefill::SendActivations& send) {
  auto& inputs = processes_[i + 1].inputs;
  const uint64_t buffer = send.number % static_cast<uint64_t>(settings_.credits);
  Holds(!inputs.contains(buffer), "the input buffer is in use");
  inputs[buffer] = send.number;
  ToStageLater(i + 1, now_us_ + Delay(), prefill::ActivationsArrived{send.epoch, send.number});
  AtProcess(i, now_us_ + Delay(), [this, i, send] {
    Holds(processes_[i].outputs[send.number % OutputCount()] == send.number, "a wrong output");
    processes_[i].outputs.erase(send.number % OutputCount());
    ToStage(i, prefill::ActivationsSent{send.epoch, send.number, absl::OkStatus()});
  });
}

void OneChain::Perform(size_t i, const prefill::ReturnCredit& credit) {
  processes_[i].inputs.erase(credit.number % static_cast<uint64_t>(settings_.credits));
  ToStageLater(i - 1, now_us_ + Delay(), prefill::CreditReturned{credit.epoch, credit.number});
}

void OneChain::Perform(size_t i, const prefill::SendKv& send) {
  std::set<int>& sent = processes_[i].sent[send.attempt_id];
  for (size_t p = 0; p < send.pages.size(); ++p) {
    Holds(sent.insert(send.first_page + static_cast<int>(p)).second, "a page is sent twice");
    ++processes_[i].reading[send.pages[p]];
  }
  const bool fails = random_.Chance(settings_.send_error_chance);
  AtProcess(i, now_us_ + random_.Between(0, 300), [this, i, send, fails] {
    for (const int page : send.pages) --processes_[i].reading[page];
    ToStage(i, prefill::KvSent{send.epoch, send.send_id,
                               fails ? absl::UnavailableError("decode") : absl::OkStatus(), 1, 1});
  });
}

void OneChain::Perform(size_t i, const prefill::SendCommit& commit) {
  Holds(processes_[i].committed.insert(commit.attempt_id).second, "a prompt is committed twice");
  Holds(commit.first_token.has_value() == (i + 1 == stages_.size()), "a wrong first token");
  ToStageLater(i, now_us_ + Delay(),
               prefill::KvSent{commit.epoch, commit.send_id, absl::OkStatus(), 1, 0});
}

void OneChain::Perform(size_t i, const prefill::ReportPlanDone& report) {
  AtProcess(0, InOrder(processes_[i].report_free_us), [this, i, report] {
    ToPlanner(prefill::StagePlanDone{static_cast<int>(i), report.epoch, report.done});
  });
}

void OneChain::Perform(size_t i, const prefill::ReportRequestClosed& report) {
  AtProcess(0, InOrder(processes_[i].report_free_us), [this, i, report] {
    ToPlanner(prefill::StageRequestClosed{static_cast<int>(i), report.epoch, report.closed});
  });
}

void OneChain::Perform(size_t i, const prefill::EndEpoch& end) {
  Complain(absl::StrCat("stage ", i, " ends the epoch: ", end.status.ToString()));
}

}  // namespace baton::sim
