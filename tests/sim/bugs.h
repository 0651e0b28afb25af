// The planted bugs by name; README.md says what each one does.
#ifndef TESTS_SIM_BUGS_H_
#define TESTS_SIM_BUGS_H_

#include <string_view>

#include "common/base/planted_bug.h"

namespace baton::sim {

struct NamedBug {
  Bug bug;
  std::string_view name;
};

inline constexpr NamedBug kPlantedBugs[] = {
    {Bug::kLeaseIgnoresGeneration, "lease-ignores-generation"},
    {Bug::kLeaseFreesBeforeDrain, "lease-frees-before-drain"},
    {Bug::kLeaseCommitsWithoutFirstToken, "lease-commits-without-first-token"},
    {Bug::kLeaseIgnoresChecksum, "lease-ignores-checksum"},
    {Bug::kLeaseIgnoresData, "lease-ignores-data"},
    {Bug::kLeaseIgnoresWritersLife, "lease-ignores-writers-life"},
    {Bug::kLeaseIgnoresOwnLife, "lease-ignores-own-life"},
    {Bug::kLeaseHeedsFormerLife, "lease-heeds-former-life"},
    {Bug::kLeaseNeverSilent, "lease-never-silent"},
    {Bug::kLeaseTellsTooEarly, "lease-tells-too-early"},
    {Bug::kDecodeLeaksOnAbort, "decode-leaks-on-abort"},
    {Bug::kDecodeIgnoresDeadline, "decode-ignores-deadline"},
    {Bug::kDecodeAwaitsStream, "decode-awaits-stream"},
    {Bug::kDecodePositionOffByOne, "decode-position-off-by-one"},
    {Bug::kDecodeFreesUnderStep, "decode-frees-under-step"},
    {Bug::kDecodeTellsFirstOfStep, "decode-tells-first-of-step"},
    {Bug::kDecodeCountsPagesShort, "decode-counts-pages-short"},
    {Bug::kDecodeStopsEarly, "decode-stops-early"},
    {Bug::kDecodeOpensStaleStream, "decode-opens-stale-stream"},
    {Bug::kDecodeForgetsEarlyAbort, "decode-forgets-early-abort"},
    {Bug::kDecodeLetsOvertake, "decode-lets-overtake"},
    {Bug::kPlannerReusesPagesEarly, "planner-reuses-pages-early"},
    {Bug::kPlannerForgetsAbort, "planner-forgets-abort"},
    {Bug::kPlannerCountsPagesLong, "planner-counts-pages-long"},
    {Bug::kPlannerHeedsOldEpoch, "planner-heeds-old-epoch"},
    {Bug::kPlannerFinishesEarly, "planner-finishes-early"},
    {Bug::kPlannerLetsOvertake, "planner-lets-overtake"},
    {Bug::kPlannerSharesNothing, "planner-shares-nothing"},
    {Bug::kPlannerStarvesLong, "planner-starves-long"},
    {Bug::kStageAppliesPlanTwice, "stage-applies-plan-twice"},
    {Bug::kStageTakesOldPlan, "stage-takes-old-plan"},
    {Bug::kStageTakesOldActivations, "stage-takes-old-activations"},
    {Bug::kStageSendsFirstPages, "stage-sends-first-pages"},
    {Bug::kStageClosesTwice, "stage-closes-twice"},
    {Bug::kStageAbortsAhead, "stage-aborts-ahead"},
    {Bug::kStageReusesOutputEarly, "stage-reuses-output-early"},
    {Bug::kStageForgetsSuccessors, "stage-forgets-successors"},
    {Bug::kStageSkipsTurns, "stage-skips-turns"},
    {Bug::kOutboxIgnoresWindow, "outbox-ignores-window"},
    {Bug::kOutboxTrustsSent, "outbox-trusts-sent"},
    {Bug::kOutboxRestartsRanges, "outbox-restarts-ranges"},
    {Bug::kOutboxCommitsEarly, "outbox-commits-early"},
    {Bug::kRouterKeepsOtherLeg, "router-keeps-other-leg"},
    {Bug::kRouterHeedsLateFailure, "router-heeds-late-failure"},
    {Bug::kRouterRetriesAfterFirstToken, "router-retries-after-first-token"},
    {Bug::kRouterAcceptsDuplicateId, "router-accepts-duplicate-id"},
    {Bug::kRouterQueuesInPrefill, "router-queues-in-prefill"},
    {Bug::kRouterQueuesOnDecode, "router-queues-on-decode"},
    {Bug::kRouterForgetsWaiting, "router-forgets-waiting"},
    {Bug::kRouterKeepsViewToItself, "router-keeps-view-to-itself"},
    {Bug::kPlannerWaitsForEver, "planner-waits-for-ever"},
    {Bug::kWiringTrustsItsClock, "wiring-trusts-its-clock"},
    {Bug::kWorkerTakesLastView, "worker-takes-last-view"},
    {Bug::kRouterTakesMisfits, "router-takes-misfits"},
    {Bug::kRouterKeepsWhoCameFirst, "router-keeps-who-came-first"},
    {Bug::kWorkerTakesRefusalsForGood, "worker-takes-refusals-for-good"},
    {Bug::kWorkerKeepsLossesToItself, "worker-keeps-losses-to-itself"},
    {Bug::kRouterForgivesAtOnce, "router-forgives-at-once"},
    {Bug::kRouterPairsDraining, "router-pairs-draining"},
    {Bug::kRouterRetriesWithoutBudget, "router-retries-without-budget"},
    {Bug::kRouterDefersTicks, "router-defers-ticks"},
    {Bug::kRouterCountsHandBack, "router-counts-hand-back"},
    {Bug::kDecodeBeginsWhileDraining, "decode-begins-while-draining"},
    {Bug::kPlannerBeginsWhileDraining, "planner-begins-while-draining"},
    {Bug::kPlannerHurries, "planner-hurries"},
    {Bug::kPlannerLearnsFromOthers, "planner-learns-from-others"},
    {Bug::kRouterNeverForgives, "router-never-forgives"},
    {Bug::kRouterRetriesOnceMore, "router-retries-once-more"},
    {Bug::kRouterGivesUpOnPrefill, "router-gives-up-on-prefill"},
    {Bug::kRouterRetriesTheSamePair, "router-retries-the-same-pair"},
    {Bug::kRouterDrainsAtOnce, "router-drains-at-once"},
    {Bug::kRouterTrustsOldLeases, "router-trusts-old-leases"},
    {Bug::kWiringGivesUp, "wiring-gives-up"},
    {Bug::kWorkerConnectsOnce, "worker-connects-once"},
    {Bug::kDrainLeavesEarly, "drain-leaves-early"},
    {Bug::kWorkerForgetsEarlyDeath, "worker-forgets-early-death"},
    {Bug::kWorkerTrustsOldEndpoints, "worker-trusts-old-endpoints"},
    {Bug::kStageKeepsDeadNeighbour, "stage-keeps-dead-neighbour"},
    {Bug::kLegsForgetAnswer, "legs-forget-answer"},
    {Bug::kLinkAnswersNoPing, "link-answers-no-ping"},
    {Bug::kLegsPassCancelled, "legs-pass-cancelled"},
    {Bug::kLinkReadyWithoutGroup, "link-ready-without-group"},
    {Bug::kWiringHeedsOldGroups, "wiring-heeds-old-groups"},
    {Bug::kPlannerCountsOneRank, "planner-counts-one-rank"},
    {Bug::kLeaseForgetsRanks, "lease-forgets-ranks"},
    {Bug::kLeaseMixesHeads, "lease-mixes-heads"},
    {Bug::kRouterOverlooksRanks, "router-overlooks-ranks"},
};

}  // namespace baton::sim

#endif  // TESTS_SIM_BUGS_H_
