// The spans of one stage: each request's chunks as they are computed, and the hand-off of its KV.
// Only made when the process traces; of requests that are not sampled it keeps nothing.
#ifndef SERVICES_PREFILL_STAGE_STAGE_TRACE_H_
#define SERVICES_PREFILL_STAGE_STAGE_TRACE_H_

#include <cstdint>
#include <map>
#include <vector>

#include "common/tracing/tracer.h"
#include "services/prefill/core/stage.h"
#include "services/prefill/stage/plan_computer.h"

namespace baton::prefill {

// Loop thread.
class StageTrace {
 public:
  // `tracer` is not owned.
  StageTrace(tracing::Tracer* tracer, int stage) : tracer_(tracer), stage_(stage) {}

  // A request enters the stage.
  void Open(uint64_t attempt_id, const tracing::TraceContext& parent);
  // A plan has come; its turn may be later.
  void PlanArrived(uint64_t number, int64_t now_us) { arrived_us_[number] = now_us; }
  // `prompts` are those of the plan's items, in order. A plan packs chunks of several requests:
  // each has a span in its own trace, linked to the others, which it shared the time with.
  void BeginCompute(const RunCompute& action, const std::vector<PromptContextPtr>& prompts,
                    int64_t now_us);
  void EndCompute(const ComputeFinished& event, int64_t now_us);
  // From the first page that is handed over...
  void BeginSend(const SendKv& action, int64_t now_us);
  // ...until nothing more of the request is sent.
  void Close(const RequestClosed& closed, int64_t now_us);
  // Everything that is open ends so.
  void EndEpoch(const absl::Status& reason, int64_t now_us);

 private:
  struct HandOff {
    tracing::TraceContext parent;
    tracing::ActiveSpan span;
    int pages = 0;
  };

  tracing::Tracer* const tracer_;
  const int stage_;
  std::map<uint64_t, int64_t> arrived_us_;   // By plan, of those whose turn has not come.
  std::map<uint64_t, HandOff> hand_offs_;    // By attempt, of requests that are recorded.
  std::vector<tracing::ActiveSpan> chunks_;  // For the plan that is being computed.
};

}  // namespace baton::prefill

#endif  // SERVICES_PREFILL_STAGE_STAGE_TRACE_H_
