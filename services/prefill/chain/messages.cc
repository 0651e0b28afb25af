#include "services/prefill/chain/messages.h"

#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/kv/head_routes.h"
#include "common/rpc/convert.h"
#include "common/types/turn.h"
#include "services/worker/core/taken_prompts.h"

namespace baton::prefill {
namespace {

using TokenIds = google::protobuf::RepeatedField<int32_t>;

absl::Status CheckIds(const TokenIds& ids, const PlanBounds& bounds, const std::string& field) {
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < bounds.vocab_size) continue;
    return InvalidField(field, absl::StrCat("id ", ids[i], " at position ", i,
                                            " is outside the vocabulary of ", bounds.vocab_size));
  }
  return absl::OkStatus();
}

// A ticket whose decode stages have this model's layers, and whose ranks can get their heads from
// this chain's.
absl::StatusOr<Ticket> TicketFromProto(const v1::Ticket& proto, const PlanBounds& bounds,
                                       const std::string& field) {
  BATON_ASSIGN_OR_RETURN(Ticket ticket, rpc::FromProto(proto, field));
  if (!ticket.stages.empty() && ticket.stages.back().end != bounds.layers) {
    return InvalidField(field + ".stages", absl::StrCat("end at layer ", ticket.stages.back().end,
                                                        " of ", bounds.layers));
  }
  const auto sources = SourcesOf(bounds.kv_heads, bounds.tensor_ranks, ticket.ranks());
  if (sources.ok()) return ticket;
  return InvalidField(field + ".followers", std::string(sources.status().message()));
}

// What a later stage knows of a request.
absl::StatusOr<PromptContextPtr> ContextFromProto(const v1::PlanOpen& proto,
                                                  const PlanBounds& bounds, const PlanOpen& open,
                                                  const std::string& field) {
  BATON_ASSIGN_OR_RETURN(TokenSampler sampler, bounds.SamplerOf(proto.sampling()));
  const std::string ids = field + ".prompt_token_ids";
  BATON_RETURN_IF_ERROR(CheckIds(proto.prompt_token_ids(), bounds, ids));
  PromptContext context{{proto.prompt_token_ids().begin(), proto.prompt_token_ids().end()},
                        proto.sampling(),
                        std::move(sampler),
                        tracing::ParseTraceContext(proto.traceparent(), proto.tracestate())};
  BATON_RETURN_IF_ERROR(context.sampler.CheckDrawn(open.prompt_tokens()));
  const bool embeds = bounds.embeds && !open.adopted();
  const int expected = embeds || context.LaterStagesNeedTokens() ? open.prompt_tokens() : 0;
  BATON_RETURN_IF_ERROR(InRange(proto.prompt_token_ids_size(), expected, expected, ids));
  if (open.drawn.empty()) return std::make_shared<const PromptContext>(std::move(context));
  return Resumed(context, open.drawn);
}

absl::StatusOr<PlanOpen> OpenFromProto(const v1::PlanOpen& proto, const PlanBounds& bounds,
                                       const std::string& field) {
  PlanOpen open;
  open.attempt_id = proto.attempt_id();
  if (proto.has_ticket()) {
    BATON_ASSIGN_OR_RETURN(open.ticket, TicketFromProto(proto.ticket(), bounds, field + ".ticket"));
  } else {
    open.decoded_prompt_tokens = proto.prompt_tokens();
  }
  open.cached_tokens = proto.cached_tokens();
  BATON_RETURN_IF_ERROR(InRange(open.prompt_tokens(), 1, bounds.max_context_tokens,
                                field + (open.ticket ? ".ticket" : "") + ".prompt_tokens"));
  const std::string drawn = field + ".drawn_token_ids";
  const int most_drawn = open.ticket ? 0 : bounds.max_context_tokens - open.prompt_tokens();
  BATON_RETURN_IF_ERROR(InRange(proto.drawn_token_ids_size(), 0, most_drawn, drawn));
  BATON_RETURN_IF_ERROR(CheckIds(proto.drawn_token_ids(), bounds, drawn));
  open.drawn.assign(proto.drawn_token_ids().begin(), proto.drawn_token_ids().end());
  if (open.ticket && proto.pages_size() != open.ticket->prompt_pages) {
    return InvalidField(
        field + ".pages",
        absl::StrCat(proto.pages_size(), " pages, the ticket has ", open.ticket->prompt_pages));
  }
  std::set<int> unique;
  for (const int page : proto.pages()) {
    BATON_RETURN_IF_ERROR(InRange(page, 0, bounds.page_count - 1, field + ".pages"));
    if (!unique.insert(page).second) {
      return InvalidField(field + ".pages", absl::StrCat("page ", page, " twice"));
    }
    open.pages.push_back(page);
  }
  return open;
}

absl::StatusOr<PlanItem> ItemFromProto(const v1::PlanItem& proto, const PlanBounds& bounds) {
  BATON_RETURN_IF_ERROR(
      InRange(proto.token_begin(), 0, bounds.max_context_tokens - 1, "plan.items.token_begin"));
  BATON_RETURN_IF_ERROR(
      InRange(proto.token_count(), 1, bounds.max_plan_tokens, "plan.items.token_count"));
  BATON_RETURN_IF_ERROR(InRange(proto.token_id(), 0, bounds.vocab_size - 1, "plan.items.token_id"));
  if (proto.has_new_page()) {
    BATON_RETURN_IF_ERROR(
        InRange(proto.new_page(), 0, bounds.page_count - 1, "plan.items.new_page"));
  }
  return PlanItem{proto.attempt_id(),
                  proto.token_begin(),
                  proto.token_count(),
                  proto.final(),
                  proto.draws(),
                  proto.token_id(),
                  proto.has_new_page() ? proto.new_page() : -1};
}

}  // namespace

absl::StatusOr<Start> FromProto(const v1::StartRequest& proto, const PlanBounds& bounds,
                                const tracing::TraceContext& trace) {
  Start start;
  start.attempt_id = proto.attempt_id();
  const TokenIds& ids = proto.fixed_prompt_token_ids();
  constexpr char kIds[] = "fixed_prompt_token_ids";
  BATON_RETURN_IF_ERROR(InRange(ids.size(), 1, bounds.max_context_tokens, kIds));
  BATON_RETURN_IF_ERROR(CheckIds(ids, bounds, kIds));
  BATON_ASSIGN_OR_RETURN(TokenSampler sampler, bounds.SamplerOf(proto.sampling()));
  BATON_RETURN_IF_ERROR(sampler.CheckPromptLogprobs(ids.size()));
  BATON_RETURN_IF_ERROR(sampler.CheckDrawn(ids.size()));
  if (proto.has_ticket()) {
    BATON_ASSIGN_OR_RETURN(start.ticket, TicketFromProto(proto.ticket(), bounds, "ticket"));
  }
  BATON_RETURN_IF_ERROR(InRange(proto.timeout_ms(), int64_t{1}, kMaxTimeoutMs, "timeout_ms"));
  start.timeout_ms = proto.timeout_ms();
  if (proto.cache_salt().size() > kMaxCacheSaltBytes) {
    return InvalidField("cache_salt", absl::StrCat(proto.cache_salt().size(), " bytes, at most ",
                                                   kMaxCacheSaltBytes));
  }
  start.cache_salt = proto.cache_salt();
  BATON_RETURN_IF_ERROR(InRange(proto.priority(), -kMaxPriority, kMaxPriority, "priority"));
  start.priority = proto.priority();
  BATON_RETURN_IF_ERROR(
      InRange(proto.head_start_us(), int64_t{0}, kMaxTimeoutMs * 1000, "head_start_us"));
  start.head_start_us = proto.head_start_us();
  BATON_RETURN_IF_ERROR(
      InRange(proto.prefix_keys_size(), 0, worker::kMaxPrefixKeys, "prefix_keys"));
  start.prompt = std::make_shared<PromptContext>(
      PromptContext{{ids.begin(), ids.end()}, proto.sampling(), std::move(sampler), trace});
  return start;
}

v1::Plan ToProto(const PlanWithContexts& plan, bool embeds) {
  v1::Plan proto;
  proto.set_epoch(plan.plan.epoch);
  proto.set_number(plan.plan.number);
  for (const PlanItem& item : plan.plan.items) {
    v1::PlanItem& out = *proto.add_items();
    out.set_attempt_id(item.attempt_id);
    out.set_token_begin(item.token_begin);
    out.set_token_count(item.token_count);
    out.set_final(item.final);
    out.set_draws(item.draws);
    out.set_token_id(item.token);
    if (item.new_page >= 0) out.set_new_page(item.new_page);
  }
  for (const PlanOpen& open : plan.plan.opens) {
    v1::PlanOpen& out = *proto.add_opens();
    out.set_attempt_id(open.attempt_id);
    if (open.ticket) *out.mutable_ticket() = rpc::ToProto(*open.ticket);
    out.set_prompt_tokens(open.decoded_prompt_tokens);
    out.set_cached_tokens(open.cached_tokens);
    out.mutable_pages()->Add(open.pages.begin(), open.pages.end());
    out.mutable_drawn_token_ids()->Add(open.drawn.begin(), open.drawn.end());
    const PromptContext& context = *plan.opens.at(open.attempt_id);
    *out.mutable_sampling() = context.sampling;
    if ((embeds && !open.adopted()) || context.LaterStagesNeedTokens()) {
      const auto drawn = static_cast<std::ptrdiff_t>(open.drawn.size());
      out.mutable_prompt_token_ids()->Add(context.tokens.begin(), context.tokens.end() - drawn);
    }
    if (context.trace.valid()) {
      out.set_traceparent(tracing::Traceparent(context.trace));
      out.set_tracestate(context.trace.state);
    }
  }
  proto.mutable_aborts()->Add(plan.plan.aborts.begin(), plan.plan.aborts.end());
  return proto;
}

absl::StatusOr<PlanWithContexts> FromProto(const v1::Plan& proto, const PlanBounds& bounds) {
  BATON_RETURN_IF_ERROR(InRange(proto.items_size(), 0, kMaxPlanEntries, "plan.items"));
  BATON_RETURN_IF_ERROR(InRange(proto.opens_size(), 0, kMaxPlanEntries, "plan.opens"));
  BATON_RETURN_IF_ERROR(InRange(proto.aborts_size(), 0, kMaxPlanEntries, "plan.aborts"));
  PlanWithContexts plan;
  plan.plan.epoch = proto.epoch();
  plan.plan.number = proto.number();
  int64_t tokens = 0;
  for (const v1::PlanItem& item : proto.items()) {
    BATON_ASSIGN_OR_RETURN(PlanItem checked, ItemFromProto(item, bounds));
    tokens += checked.token_count;
    plan.plan.items.push_back(checked);
  }
  BATON_RETURN_IF_ERROR(InRange(tokens, int64_t{0}, int64_t{bounds.max_plan_tokens}, "plan.items"));
  for (int i = 0; i < proto.opens_size(); ++i) {
    const std::string field = absl::StrCat("plan.opens[", i, "]");
    BATON_ASSIGN_OR_RETURN(PlanOpen open, OpenFromProto(proto.opens(i), bounds, field));
    BATON_ASSIGN_OR_RETURN(plan.opens[open.attempt_id],
                           ContextFromProto(proto.opens(i), bounds, open, field));
    plan.plan.opens.push_back(std::move(open));
  }
  plan.plan.aborts.assign(proto.aborts().begin(), proto.aborts().end());
  return plan;
}

v1::MeasuredCost ToProto(const KnownCost& known) {
  v1::MeasuredCost proto;
  proto.set_overhead_us(known.cost.overhead_us);
  proto.set_prefix_us(known.cost.prefix_us);
  proto.set_token_us(known.cost.token_us);
  proto.set_attention_us(known.cost.attention_us);
  proto.set_error_ratio(known.error);
  return proto;
}

absl::StatusOr<KnownCost> FromProto(const v1::MeasuredCost& proto) {
  const KnownCost known{{.overhead_us = proto.overhead_us(),
                         .prefix_us = proto.prefix_us(),
                         .token_us = proto.token_us(),
                         .attention_us = proto.attention_us()},
                        proto.error_ratio()};
  if (absl::Status status = known.cost.Check(); !status.ok()) {
    return InvalidField("measured_cost", std::string(status.message()));
  }
  if (!(known.error >= 0 && known.error <= CostFit::kLargestError)) {
    return InvalidField("measured_cost.error_ratio",
                        absl::StrCat(known.error, ", expected 0 to ", CostFit::kLargestError));
  }
  return known;
}

v1::PromptToken ToProto(const SampledToken& token) {
  v1::PromptToken proto;
  proto.set_token_id(token.token);
  *proto.mutable_logprobs() = rpc::LogprobsToProto(token);
  return proto;
}

v1::PlanDone ToProto(const PlanDone& done) {
  v1::PlanDone proto;
  proto.set_number(done.number);
  proto.set_compute_us(done.compute_us);
  proto.set_wait_us(done.wait_us);
  for (const PromptTokens& told : done.prompt_tokens) {
    v1::PromptTokens& out = *proto.add_prompt_tokens();
    out.set_attempt_id(told.attempt_id);
    out.set_first(told.first);
    for (const SampledToken& token : told.tokens) *out.add_tokens() = ToProto(token);
  }
  for (const DrawnToken& drawn : done.drawn) {
    v1::DrawnToken& out = *proto.add_drawn();
    out.set_attempt_id(drawn.attempt_id);
    if (drawn.token.ok()) {
      out.mutable_token()->set_token_id(drawn.token->token);
      *out.mutable_token()->mutable_logprobs() = rpc::LogprobsToProto(*drawn.token);
    } else {
      out.set_code(drawn.token.status().raw_code());
      out.set_message(std::string(drawn.token.status().message()));
    }
  }
  return proto;
}

namespace {

absl::Status AddDrawn(const v1::DrawnToken& proto, PlanDone& done) {
  BATON_RETURN_IF_ERROR(InRange(proto.code(), 0, 16, "plan_done.drawn.code"));
  if (proto.code() == 0 && !proto.has_token()) {
    return InvalidField("plan_done.drawn", "has neither token nor error");
  }
  absl::StatusOr<SampledToken>& token =
      done.drawn.emplace_back(DrawnToken{proto.attempt_id(), SampledToken{}}).token;
  if (proto.code() == 0) {
    token = rpc::SampledFromProto(proto.token().token_id(), proto.token().logprobs());
  } else {
    token = absl::Status(static_cast<absl::StatusCode>(proto.code()), proto.message());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PlanDone> FromProto(const v1::PlanDone& proto) {
  if (proto.number() == 0) return InvalidField("plan_done.number", "must not be 0");
  if (proto.compute_us() < 0 || proto.wait_us() < 0) {
    return InvalidField("plan_done", "a time is negative");
  }
  PlanDone done{proto.number(), proto.compute_us(), proto.wait_us(), {}, {}};
  BATON_RETURN_IF_ERROR(
      InRange(proto.prompt_tokens_size(), 0, kMaxPlanEntries, "plan_done.prompt_tokens"));
  for (const v1::PromptTokens& told : proto.prompt_tokens()) {
    BATON_RETURN_IF_ERROR(
        InRange(int64_t{told.first()}, int64_t{1}, kMaxPromptLogprobs, "prompt_tokens.first"));
    BATON_RETURN_IF_ERROR(InRange(int64_t{told.tokens_size()}, int64_t{0}, kMaxPromptLogprobs,
                                  "prompt_tokens.tokens"));
    PromptTokens& out =
        done.prompt_tokens.emplace_back(PromptTokens{told.attempt_id(), told.first(), {}});
    // Ids are not checked: the router, which knows the prompt, compares.
    for (const v1::PromptToken& token : told.tokens()) {
      out.tokens.push_back(rpc::SampledFromProto(token.token_id(), token.logprobs()));
    }
  }
  BATON_RETURN_IF_ERROR(InRange(proto.drawn_size(), 0, kMaxPlanEntries, "plan_done.drawn"));
  for (const v1::DrawnToken& drawn : proto.drawn()) {
    BATON_RETURN_IF_ERROR(AddDrawn(drawn, done));
  }
  return done;
}

v1::RequestClosed ToProto(const RequestClosed& closed) {
  v1::RequestClosed proto;
  proto.set_attempt_id(closed.attempt_id);
  proto.set_code(closed.status.raw_code());
  proto.set_message(std::string(closed.status.message()));
  proto.set_leg(LegOf(closed.status).value_or(""));
  proto.set_instance_id(InstanceOf(closed.status).value_or(""));
  proto.set_unconnected(IsUnconnected(closed.status));
  proto.set_kv_bytes(closed.kv_bytes);
  proto.set_kv_transfer_us(closed.kv_transfer_us);
  proto.set_kv_exposed_us(closed.kv_exposed_us);
  return proto;
}

absl::StatusOr<RequestClosed> FromProto(const v1::RequestClosed& proto) {
  BATON_RETURN_IF_ERROR(InRange(proto.code(), 0, 16, "request_closed.code"));
  if (proto.kv_bytes() < 0 || proto.kv_transfer_us() < 0 || proto.kv_exposed_us() < 0) {
    return InvalidField("request_closed", "a count is negative");
  }
  RequestClosed closed;
  closed.attempt_id = proto.attempt_id();
  closed.status = absl::Status(static_cast<absl::StatusCode>(proto.code()), proto.message());
  if (!proto.leg().empty()) {
    closed.status = WithLeg(closed.status, proto.leg(), proto.instance_id());
  }
  if (proto.unconnected()) closed.status = Unconnected(std::move(closed.status));
  closed.kv_bytes = proto.kv_bytes();
  closed.kv_transfer_us = proto.kv_transfer_us();
  closed.kv_exposed_us = proto.kv_exposed_us();
  return closed;
}

v1::StructureCompiled ToProto(uint64_t attempt_id, const absl::Status& status) {
  v1::StructureCompiled proto;
  proto.set_attempt_id(attempt_id);
  proto.set_code(status.raw_code());
  proto.set_message(std::string(status.message()));
  return proto;
}

absl::StatusOr<absl::Status> FromProto(const v1::StructureCompiled& proto) {
  BATON_RETURN_IF_ERROR(InRange(proto.code(), 0, 16, "compiled.code"));
  return absl::Status(static_cast<absl::StatusCode>(proto.code()), proto.message());
}

v1::StartResponse ToProto(const PrefillOutcome& outcome) {
  v1::StartResponse response;
  v1::PrefillReport& report = *response.mutable_report();
  for (const ChunkTiming& chunk : outcome.chunks) {
    v1::ChunkReport& out = *report.add_chunks();
    out.set_token_begin(chunk.token_begin);
    out.set_token_count(chunk.token_count);
    for (size_t stage = 0; stage < chunk.stages.size(); ++stage) {
      v1::StageTiming& timing = *out.add_stages();
      timing.set_stage(static_cast<int>(stage));
      timing.set_compute_us(chunk.stages[stage].compute_us);
      timing.set_wait_us(chunk.stages[stage].wait_us);
    }
  }
  report.set_queue_us(outcome.queue_us);
  report.set_compute_us(outcome.compute_us);
  report.set_kv_bytes(outcome.kv_bytes);
  report.set_kv_transfer_us(outcome.kv_transfer_us);
  report.set_kv_exposed_us(outcome.kv_exposed_us);
  report.set_cached_tokens(outcome.cached_tokens);
  for (const SampledToken& token : outcome.prompt_tokens) {
    *response.add_prompt_tokens() = ToProto(token);
  }
  return response;
}

}  // namespace baton::prefill
