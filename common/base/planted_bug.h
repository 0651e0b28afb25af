// Planted bugs: deliberate mistakes that only the simulation can switch on, to prove that it would
// catch them (mutation testing of the invariants). Production holds the branches but nothing that
// takes them: the one switch, planted_bug_switch.h, is testonly, and Bazel refuses it to whatever
// ships. Rejected: a second build of every core with the branches compiled in.
// tests/sim/README.md lists what each one does.
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
  kDecodeLeaksOnAbort,             // decode: forgets the pages of a request aborted while waiting
  kDecodeIgnoresDeadline,          // decode: never ends a reservation whose deadline has passed
  kDecodeAwaitsStream,             // decode: holds a ticket whose stream never opens
  kPlannerReusesPagesEarly,        // planner: frees a prompt's pages before every stage has sent
  kPlannerForgetsAbort,            // planner: drops the abort of a request that is in the pipe
  kStageAppliesPlanTwice,          // stage: takes a duplicate plan for a new one
  kOutboxIgnoresWindow,            // KV outbox: hands everything to the transport at once
  kOutboxTrustsSent,               // KV outbox: takes what the transport calls sent for arrived
  kRouterKeepsOtherLeg,            // router: does not end the decode leg when prefill fails
  kRouterRetriesAfterFirstToken,   // router: replays a request whose tokens the client has seen
  kRouterAcceptsDuplicateId,       // router: runs two requests under one id
  kRouterForgetsWaiting,           // router: leaves requests in the queue when a pair is ready
  kRouterKeepsViewToItself,        // router: tells nobody that the view has changed
  kPlannerWaitsForEver,            // planner: waits for a plan of which a stage has lost the input
  kWiringTrustsItsClock,        // wiring: takes an epoch that stages refuse as old for the newest
  kWorkerTakesLastView,         // worker: knows whom the router lists that it heard last
  kRouterTakesMisfits,          // router: lets workers of other models join
  kRouterKeepsWhoCameFirst,     // router: members never give way to workers that they don't fit
  kWorkerTakesRefusalsForGood,  // worker: ends when it is refused, whatever for
  kRouterPairsDraining,         // router: gives new requests to workers that drain
  kRouterCountsHandBack,        // router: takes a drain's refusal for a failed attempt
  kDecodeBeginsWhileDraining,   // decode: takes reservations while it drains
  kPlannerBeginsWhileDraining,  // planner: takes prompts while its chain drains
  kDrainLeavesEarly,            // worker: leaves as soon as its own work is done
};

// The bug that is on: kNone unless PlantBug was called.
Bug ActiveBug();
inline bool PlantedBug(Bug bug) { return ActiveBug() == bug; }

}  // namespace baton

#endif  // COMMON_BASE_PLANTED_BUG_H_
