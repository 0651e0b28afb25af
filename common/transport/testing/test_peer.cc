// The second process of data_plane_process_test. Prints its address, reads its parent's, connects,
// and then either echoes test messages or sends one:
//   test_peer echo
//   test_peer send ID BYTES RUNS
// until its stdin ends.
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/sync.h"
#include "common/transport/data_plane.h"
#include "common/transport/testing/test_messages.h"

namespace baton::testing {
namespace {

int Main(int argc, char** argv) {
  BATON_CHECK(InitLogging("warning", "test_peer").ok());
  BATON_CHECK(argc >= 2);
  const std::string mode = argv[1];
  Inbox inbox;
  absl::StatusOr<std::unique_ptr<DataPlane>> created = DataPlane::Create(TestOptions());
  BATON_CHECK(created.ok()) << created.status();
  DataPlane& plane = **created;
  PeerId parent = 0;  // Data thread.
  inbox.SetArrivalHook([&plane, &parent](const Inbox::Arrival& arrival) {
    BATON_CHECK(arrival.status.ok() && arrival.intact) << arrival.status;
    // The echo takes the other cut: as many runs as the receiver had.
    auto echo = std::make_shared<TestMessage>(arrival.header, arrival.header.receive_runs);
    plane.Send(parent, echo->ToOutgoing([echo](const absl::Status&) {}));
  });
  BATON_CHECK(plane.Register(MessageKind::kKvPages, &inbox).ok());
  std::cout << ToHex(plane.address()) << std::endl;
  std::string line;
  std::getline(std::cin, line);
  absl::StatusOr<PeerId> connected = plane.Connect(FromHex(line));
  BATON_CHECK(connected.ok()) << connected.status();
  Notification known;
  BATON_CHECK(plane.Post([&parent, &known, peer = *connected] {
    parent = peer;
    known.Notify();
  }));
  known.WaitForNotification();
  std::cout << "connected" << std::endl;
  if (mode == "send") {
    BATON_CHECK(argc == 5);
    const auto runs = static_cast<uint32_t>(std::stoul(argv[4]));
    auto message = std::make_shared<TestMessage>(TestHeader{.id = std::stoull(argv[2]),
                                                            .payload_bytes = std::stoull(argv[3]),
                                                            .receive_runs = runs},
                                                 runs);
    plane.Send(*connected, message->ToOutgoing([message](const absl::Status&) {}));
  }
  while (std::getline(std::cin, line)) {
  }
  plane.Shutdown();
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace baton::testing

int main(int argc, char** argv) { return baton::testing::Main(argc, argv); }
