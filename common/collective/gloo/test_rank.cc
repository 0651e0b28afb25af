// One rank of a group over Gloo as a process, for gloo_processes_harness.cc:
//   test_rank RANK SIZE OPERATION_TIMEOUT_MS FORM_TIMEOUT_MS
// says "set KEY VALUE" (in hexadecimal) and hears "put KEY VALUE" until it says "formed", or
// "failed OUTCOME" and ends. Then it does "go COMMAND" (each answered in order by "done OUTCOME"),
// "abort REASON" and "faults" ("faults N"), until its stdin ends.
#include <signal.h>
#include <sys/prctl.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

#include "absl/strings/escaping.h"
#include "common/base/check.h"
#include "common/base/sync.h"
#include "common/collective/gloo/gloo_transport.h"
#include "common/collective/testing/group_harness.h"
#include "common/collective/threaded_communicator.h"

namespace baton::testing {
namespace {

// Any thread.
void Say(const std::string& line) {
  static Mutex* const mutex = new Mutex;
  MutexLock lock(mutex);
  std::cout << line << std::endl;
}

absl::StatusOr<std::unique_ptr<ThreadedCommunicator>> Connect(
    char** argv, const std::shared_ptr<BootstrapStore>& store) {
  const int rank = std::atoi(argv[1]);
  const int size = std::atoi(argv[2]);
  const int64_t form_timeout_ms = std::atoll(argv[4]);
  collective::CoreOptions options;
  options.communicator.operation_timeout_ms = std::atoll(argv[3]);
  const GlooOptions gloo = {.rank = rank, .size = size, .connect_timeout_ms = form_timeout_ms};
  absl::StatusOr<std::unique_ptr<MessageTransport>> transport = ConnectGloo(gloo, store);
  if (!transport.ok()) return transport.status();
  return ThreadedCommunicator::Create(TestGroup(rank, size), options, *std::move(transport),
                                      form_timeout_ms);
}

// Carries out what stdin says until it ends.
void Obey(Communicator& communicator) {
  RankRunner runner(&communicator);
  std::string line;
  // Answers in order, on a thread of its own: a command may wait for a later one of another rank.
  Mutex mutex;
  int commands = 0;
  bool over = false;
  std::thread answerer([&] {
    for (int answered = 0;; ++answered) {
      {
        MutexLock lock(&mutex);
        mutex.Await([&] { return commands > answered || over; });
        if (commands == answered) return;
      }
      Say("done " + ToText(runner.Take()));
    }
  });
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    const std::string rest = line.substr(std::min(line.size(), verb.size() + 1));
    if (verb == "go") {
      runner.Submit(Command::FromText(rest));
      MutexLock lock(&mutex);
      ++commands;
    } else if (verb == "abort") {
      communicator.Abort(absl::UnavailableError(rest));
    } else if (verb == "faults") {
      Say("faults " + std::to_string(runner.faults()));
    }
  }
  communicator.Abort(absl::CancelledError("stdin has ended"));
  {
    MutexLock lock(&mutex);
    over = true;
  }
  answerer.join();
}

int Main(int argc, char** argv) {
  BATON_CHECK(argc == 5);
  // Stopped, it would outlive a test that is killed.
  BATON_CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
  const auto store =
      std::make_shared<BootstrapStore>([](const std::string& key, const std::string& value) {
        Say("set " + absl::BytesToHexString(key) + " " + absl::BytesToHexString(value));
      });
  absl::StatusOr<std::unique_ptr<ThreadedCommunicator>> communicator;
  std::thread connecting([&] {
    communicator = Connect(argv, store);
    Say(communicator.ok() ? "formed" : "failed " + ToText(Outcome{communicator.status()}));
  });
  std::string line;
  while (std::getline(std::cin, line) && line != "start") {
    std::istringstream words(line);
    std::string verb;
    std::string key;
    std::string value;
    words >> verb >> key >> value;
    if (verb == "put") store->Put(absl::HexStringToBytes(key), absl::HexStringToBytes(value));
  }
  if (line != "start") std::_Exit(EXIT_SUCCESS);  // The test has ended.
  connecting.join();
  if (communicator.ok()) Obey(**communicator);
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace baton::testing

int main(int argc, char** argv) { return baton::testing::Main(argc, argv); }
