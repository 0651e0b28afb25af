// What no correct peer sends to the ends of links: a stage 0 that breaks the protocol, another one
// that claims its place, workers in the view that are no members of the chain but for one thing.
#ifndef TESTS_SIM_LINK_INTRUDERS_H_
#define TESTS_SIM_LINK_INTRUDERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "services/links/core/hello.h"
#include "services/links/core/link.h"
#include "services/worker/core/peer_worker.h"
#include "tests/sim/world.h"

namespace baton::sim {

inline constexpr char kImpostor[] = "impostor";

// On a link whose hello was `hello`: a second one, work of another epoch, or work that makes no
// sense. Each ends the link.
links::LinkEvent NonsenseOn(World& world, uint64_t link, const links::Hello& hello);

// Another process that claims stage 0's place while that one lives. It is refused.
links::LinkEvent AnotherLeader(World& world, const links::Hello& hello);

// The view with workers in it that would be members of the chain at `place`, were it not for their
// role, their chain, its shape, their place in it or their layers. They come first, and of two with
// one place the first one counts.
std::vector<worker::PeerWorker> WithImpostors(World& world, const links::ChainPlace& place,
                                              std::vector<worker::PeerWorker> view);

}  // namespace baton::sim

#endif  // TESTS_SIM_LINK_INTRUDERS_H_
