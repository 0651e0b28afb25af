// The shell around a member's link: passes it the messages of the leader (stage 0, or a decode
// service's rank 0), and performs its actions. Members' other messages and their work in an epoch
// go to its owner's callbacks.
#ifndef SERVICES_LINKS_MEMBER_LINK_H_
#define SERVICES_LINKS_MEMBER_LINK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "common/base/serial_events.h"
#include "services/links/core/link.h"
#include "services/links/group_joiner.h"
#include "services/links/link_stream.h"

namespace baton::links {

// Loop thread.
class MemberLink {
 public:
  struct Options {
    ChainPlace place;
    int page_count = 0;             // That are here.
    int max_plan_tokens = 0;        // That a hello may ask for.
    GroupJoiner* joiner = nullptr;  // With more ranks than one. Not owned.
    const char* failpoint = "";
  };
  // Result of a message that is sent only to ready members.
  struct Work {
    uint64_t epoch = 0;
    absl::Status status;  // Not OK: the message is invalid.
  };
  struct Callbacks {
    std::function<absl::Status(const Hello&)> try_epoch;      // UNAVAILABLE: not yet.
    std::function<void(const absl::Status& why)> drop_epoch;  // One that has begun.
    std::function<void(v1::LinkReady&)> describe;             // What it says of itself.
    // Reads the message, and keeps what it says until it is to be taken or the next one comes.
    std::function<Work(const v1::LinkRequest&)> read;
    std::function<void()> take;
    std::function<void(uint64_t epoch, uint64_t number)> next_stage_done;  // May be null.
  };
  MemberLink(Options options, Callbacks callbacks);

  void OnRequest(const std::shared_ptr<LinkStream>& stream, const v1::LinkRequest& request);
  void OnEnd(const std::shared_ptr<LinkStream>& stream);

  // To the peer that opened the link; does nothing if the epoch is over.
  void Report(uint64_t epoch, v1::LinkResponse response);
  // Ends the epoch.
  void Fail(const absl::Status& status) { events_.Raise(StageFailed{status}); }

  const Hello& hello() const { return link_.hello(); }

  // Does what is due; returns when it is next.
  int64_t Wake(int64_t now_us);

 private:
  void Handle(const LinkEvent& event);
  void Perform(const TryEpoch& action);
  void Perform(const FormGroup& action);
  void Perform(const SendReady& action);
  void Perform(const SendPong& action);
  void Perform(const TakeWork&) { callbacks_.take(); }
  void Perform(const PassNextStageDone& action);
  void Perform(const DropEpoch& action) { callbacks_.drop_epoch(action.why); }
  void Perform(const RefuseLink& action);
  void Perform(const EndLink& action);

  // The stream's number; 0: it has not begun with hello, or has ended.
  uint64_t NumberOf(const std::shared_ptr<LinkStream>& stream) const;
  void OnHello(const std::shared_ptr<LinkStream>& stream, const v1::LinkHello& proto);
  void OnGroupMessage(uint64_t number, const v1::LinkRequest& request);
  absl::Status Named(const absl::Status& status) const;

  const Options options_;
  const Callbacks callbacks_;
  Link link_;
  SerialEvents<LinkEvent> events_{[this](const LinkEvent& event) { Handle(event); }};
  std::map<uint64_t, std::shared_ptr<LinkStream>> streams_;  // Neither refused nor ended.
  uint64_t streams_opened_ = 0;
};

}  // namespace baton::links

#endif  // SERVICES_LINKS_MEMBER_LINK_H_
