// Planted bugs: deliberate mistakes that only the simulation can switch on, to prove that it would
// catch them (mutation testing of the invariants). Production holds the branches but nothing that
// takes them: the one switch, planted_bug_switch.h, is testonly, and Bazel refuses it to whatever
// ships. Rejected: a second build of every core with the branches compiled in.
// tests/sim/bugs.h says what each one does.
#ifndef COMMON_BASE_PLANTED_BUG_H_
#define COMMON_BASE_PLANTED_BUG_H_

namespace baton {

enum class Bug {
  kNone,
  kLeaseIgnoresGeneration,         // lease table: places data of a stale generation
  kLeaseFreesBeforeDrain,          // lease table: reports Drained while a placement is in flight
  kLeaseCommitsWithoutFirstToken,  // lease table: commits when the pages are there, token or not
  kLeaseIgnoresChecksum,           // lease table: takes bytes whose checksum differs
  kLeaseIgnoresData,               // lease table: takes heartbeats alone for signs of life
  kLeaseIgnoresWritersLife,        // lease table: takes KV of a former life of a writer
  kLeaseIgnoresOwnLife,            // lease table: takes KV that was meant for a former life
  kLeaseHeedsFormerLife,           // lease table: takes a former life's heartbeats for the writer's
  kLeaseNeverSilent,               // lease table: waits for a silent writer until the deadline
  kLeaseTellsTooEarly,             // lease table: calls a part complete that is not, when asked
  kDecodeLeaksOnAbort,             // decode: forgets the pages of a request aborted while waiting
  kDecodeIgnoresDeadline,          // decode: never ends a reservation whose deadline has passed
  kDecodeAwaitsStream,             // decode: holds a ticket whose stream never opens
  kDecodePositionOffByOne,         // decode: computes a token one position too far
  kDecodeFreesUnderStep,           // decode: frees the pages of a sequence that the step still uses
  kDecodeTellsFirstOfStep,         // decode: a failing step ends only its first sequence
  kDecodeCountsPagesShort,         // decode: reserves a page too few where the last one is full
  kDecodeStopsEarly,               // decode: counts the token that stops among min_tokens
  kDecodeOpensStaleStream,         // decode: opens a stream of a former generation
  kDecodeForgetsEarlyAbort,        // decode: forgets an abort that came before its Reserve
  kDecodeLetsOvertake,             // decode: lets a small request overtake a large one
  kPlannerReusesPagesEarly,        // planner: frees a prompt's pages before every stage has sent
  kPlannerForgetsAbort,            // planner: drops the abort of a request that is in the pipe
  kPlannerCountsPagesLong,         // planner: takes a page more for a prompt of exactly n pages
  kPlannerHeedsOldEpoch,           // planner: heeds what stages said in an older epoch
  kPlannerFinishesEarly,      // planner: calls a prompt done when the first stage has closed it
  kPlannerLetsOvertake,       // planner: lets short prompts take the pages an older one waits for
  kPlannerSharesNothing,      // planner: gives plans to the oldest prompt until it is through
  kPlannerStarvesLong,        // planner: gives plans to short prompts, whatever the oldest has
  kStageAppliesPlanTwice,     // stage: takes a duplicate plan for a new one
  kStageTakesOldPlan,         // stage: takes a plan of an older epoch
  kStageTakesOldActivations,  // stage: takes activations of an older epoch
  kStageSendsFirstPages,      // stage: sends the first pages' bytes for every chunk
  kStageClosesTwice,          // stage: reports a failed request closed again at its end
  kStageAbortsAhead,          // stage: heeds an abort while plans before it are being computed
  kStageReusesOutputEarly,    // stage: computes into an output buffer that is still being sent
  kStageForgetsSuccessors,    // stage: at an epoch's end waits for the first submitted plan alone
  kStageSkipsTurns,           // stage: calls a plan without items done before its turn, too
  kOutboxIgnoresWindow,       // KV outbox: hands everything to the transport at once
  kOutboxRestartsRanges,      // KV outbox: counts every chunk's pages from the prompt's first
  kOutboxCommitsEarly,        // KV outbox: sends a commit before what waits
  kOutboxTrustsSent,          // KV outbox: takes what the transport calls sent for arrived
  kRouterKeepsOtherLeg,       // router: does not end the decode leg when prefill fails
  kRouterHeedsLateFailure,    // router: fails a complete answer for a late failure of prefill
  kRouterRetriesAfterFirstToken,  // router: replays a request whose tokens the client has seen
  kRouterAcceptsDuplicateId,      // router: runs two requests under one id
  kRouterQueuesInPrefill,       // router: reserves pages for prompts that the chain has no room for
  kRouterQueuesOnDecode,        // router: binds requests to decode services that are full
  kRouterForgetsWaiting,        // router: leaves requests in the queue when a pair is ready
  kRouterKeepsViewToItself,     // router: does not announce a changed view
  kPlannerWaitsForEver,         // planner: waits for a plan of which a stage has lost the input
  kWiringTrustsItsClock,        // wiring: takes an epoch that stages refuse as old for the newest
  kWorkerTakesLastView,         // worker: knows whom the router lists that it heard last
  kRouterTakesMisfits,          // router: lets workers of other models join
  kRouterKeepsWhoCameFirst,     // router: members never give way to workers that they don't fit
  kWorkerTakesRefusalsForGood,  // worker: ends when it is refused, whatever for
  kWorkerKeepsLossesToItself,   // worker: reports no endpoint that does not stand
  kRouterForgivesAtOnce,        // router: takes heartbeats for proof that a worker serves again
  kRouterPairsDraining,         // router: gives new requests to workers that drain
  kRouterRetriesWithoutBudget,  // router: sends what was refused again at once, however often
  kRouterDefersTicks,           // router: a late loop takes itself for one that stood still
  kRouterCountsHandBack,        // router: takes a drain's refusal for a failed attempt
  kDecodeBeginsWhileDraining,   // decode: takes reservations while it drains
  kPlannerBeginsWhileDraining,  // planner: takes prompts while its chain drains
  kPlannerLearnsFromOthers,     // planner: takes every stage's times for the first one's
  kPlannerHurries,              // planner: takes a stage for stuck in half of its grace
  kRouterNeverForgives,         // router: only an answer ends a probation, time does not
  kRouterRetriesOnceMore,       // router: makes one attempt more than it may
  kRouterGivesUpOnPrefill,      // router: does not retry what a prefill stage has failed
  kRouterRetriesTheSamePair,    // router: begins again on the pair that has failed
  kRouterDrainsAtOnce,          // router: ends what runs when its settling is over
  kRouterTrustsOldLeases,       // router: keeps workers whose lease has run out
  kWiringGivesUp,               // wiring: leaves a chain alone that has failed three times
  kWorkerConnectsOnce,          // worker: does not open an endpoint again that has died
  kDrainLeavesEarly,            // worker: leaves as soon as its own work is done
  kWorkerForgetsEarlyDeath,     // worker: keeps an endpoint that died before it was known
  kWorkerTrustsOldEndpoints,    // worker: keeps its endpoints when it was dead to its peers
  kTransportTrustsEndpoints,    // transport: takes a silent endpoint for one that works
  kPlannerAwaitsClosing,        // planner: waits for ever for a stage to close what is over
  kRouterLetsTwinsIn,           // router: lets a twin take the place of a worker that lives
  kWorkerMissesRejoined,        // worker: keeps the endpoint to who was given up between two views
  kStageKeepsDeadNeighbour,     // stage: goes on when a neighbour's endpoint is gone
  kLegsForgetAnswer,            // legs: let a stream's breaking undo the answer that it told
  kLegsPassCancelled,           // legs: tell a call that its worker gave up as the client's wish
  kLinkAnswersNoPing,           // link: answers no ping of stage 0
  kLinkReadyWithoutGroup,       // link: is ready when its stage has begun, whatever its group does
  kWiringHeedsOldGroups,        // wiring: takes words of an older epoch's groups for this one's
  kPlannerCountsOneRank,        // planner: a stage is done with what one of its ranks is done with
  kLeaseForgetsRanks,           // lease table: commits when the first ranks' parts are there
  kLeaseMixesHeads,             // lease table: places every rank's heads where the first one's are
  kRouterOverlooksRanks,        // router: pairs what has a rank, not the first, that can't serve
  kDecodeTicketsEarly,          // decode: gives tickets out before every rank takes the KV
  kDecodeCountsOneCommit,       // decode: takes a prompt for there when one rank has its part of it
  kDecodeForgetsFollowersPages,  // decode: frees pages when rank 0 alone has drained
  kDecodeKeepsLostRanksKv,       // decode: waits on for KV when a rank with a part of it is lost
  kDecodeReusesGenerations,      // decode: begins with generation 1, whatever followers have had
  kDecodeKeepsFailedRanks,       // decode: goes on with ranks of which one has failed a step
  kFollowerTellsTooEarly,   // follower: says that a grant stands while a step may use its pages
  kFollowerKeepsGrants,     // follower: keeps its grants when their epoch is over
  kFollowerStepsTwice,      // follower: takes a step that it has had for a new one
  kOutboxCountsOneReceipt,  // KV outbox: a commit has arrived when one rank of decode says so
};

// The bug that is on: kNone unless PlantBug was called.
Bug ActiveBug();
inline bool PlantedBug(Bug bug) { return ActiveBug() == bug; }

}  // namespace baton

#endif  // COMMON_BASE_PLANTED_BUG_H_
