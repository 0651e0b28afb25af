// Streams of events that have nothing to say: their heads, their comments, their errors.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "common/http/testing/raw_client.h"
#include "common/http/testing/test_server.h"

namespace baton {
namespace {

constexpr EventTimes kSoon = {.hold_ms = 1, .keepalive_ms = 1};
constexpr EventTimes kNotInThisTest = {.hold_ms = 3'600'000, .keepalive_ms = 3'600'000};

class EventStreamTest : public testing::Test {
 protected:
  HeldRequest Ask(const EventTimes& times) {
    client_.Post("/hold", "");
    HeldRequest held = server_.Next();
    held.exchange->ExpectEvents(times);
    return held;
  }
  static HttpResponse Refusal() { return {429, "text/plain", "full"}; }

  TestServer server_;
  RawClient client_{server_.port()};
};

TEST_F(EventStreamTest, TheHeadLeavesBeforeThereIsAnEvent) {
  const HeldRequest held = Ask(kSoon);
  const std::string head = client_.ReadUntil("\r\n\r\n");
  EXPECT_EQ(head.find("HTTP/1.1 200 OK\r\n"), 0u);
  EXPECT_NE(head.find("Content-Type: text/event-stream\r\n"), std::string::npos);
  EXPECT_NE(head.find("X-Accel-Buffering: no\r\n"), std::string::npos);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client_.ReadUntil(":\n\n\r\n"), "3\r\n:\n\n\r\n");
  held.exchange->BeginEvents();  // It has begun: nothing.
  held.exchange->SendEvent("one");
  EXPECT_NE(client_.ReadUntil("data: one\n\n\r\n"), "");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client_.ReadUntil(":\n\n\r\n"), "3\r\n:\n\n\r\n");
  held.exchange->EndEvents();
  client_.ReadUntil("0\r\n\r\n");
  // What is left of its timer is none of the next answer's.
  client_.Post("/hold", "");
  server_.Next().Respond("next");
  EXPECT_EQ(client_.Read().body, "next");
}

TEST_F(EventStreamTest, AnEventMayHaveAName) {
  const HeldRequest held = Ask(kNotInThisTest);
  held.exchange->BeginEvents();
  client_.ReadUntil("\r\n\r\n");
  held.exchange->SendEvent({"said", "one"});
  EXPECT_EQ(client_.ReadUntil("\n\n\r\n"), "17\r\nevent: said\ndata: one\n\n\r\n");
  held.exchange->EndEvents();
}

TEST_F(EventStreamTest, ATaskRunsInTheOrderOfTheAnswer) {
  const HeldRequest held = Ask(kNotInThisTest);
  const std::thread::id caller = std::this_thread::get_id();
  held.exchange->BeginEvents();
  held.exchange->SendEvent("one");
  held.exchange->Run([exchange = held.exchange, caller] {
    EXPECT_NE(std::this_thread::get_id(), caller);
    exchange->SendEvent("two");  // At once: what comes later stands behind it.
    exchange->SendEvent("three");
  });
  held.exchange->SendEvent("four");
  held.exchange->EndEvents();
  const std::string events = client_.ReadUntil("0\r\n\r\n");
  size_t at = 0;
  for (const char* event : {"one", "two", "three", "four"}) {
    at = events.find(event, at);
    EXPECT_NE(at, std::string::npos) << event;
  }
}

TEST_F(EventStreamTest, AnErrorThatComesSoonHasAStatus) {
  const HeldRequest held = Ask(kNotInThisTest);
  held.exchange->RespondOrEnd(Refusal(), {"error", "[DONE]"});
  const RawAnswer answer = client_.Read();
  EXPECT_EQ(answer.body, "full");
  held.exchange->RespondOrEnd(Refusal(), {"again"});  // Once is all.
  client_.Get("/after");
  EXPECT_EQ(client_.Read().body, "GET /after ");
}

TEST_F(EventStreamTest, AnErrorThatComesLateIsAnEvent) {
  const HeldRequest held = Ask(kSoon);
  client_.ReadUntil(":\n\n\r\n");
  held.exchange->RespondOrEnd(Refusal(), {"error", "[DONE]"});
  const std::string rest = client_.ReadUntil("0\r\n\r\n");
  EXPECT_NE(rest.find("data: error\n\n\r\n"), std::string::npos);
  EXPECT_NE(rest.find("data: [DONE]\n\n\r\n0\r\n\r\n"), std::string::npos);
  client_.Get("/after");
  EXPECT_EQ(client_.Read().body, "GET /after ");
}

TEST_F(EventStreamTest, AnAnswerThatIsThereIsLeftAlone) {
  client_.Post("/hold", "");
  const HeldRequest held = server_.Next();
  held.Respond("whole");
  held.exchange->ExpectEvents(kSoon);
  EXPECT_EQ(client_.Read().body, "whole");
  client_.Get("/after");
  EXPECT_EQ(client_.Read().body, "GET /after ");
}

TEST_F(EventStreamTest, WithoutKeepaliveTheHeadComesWithTheFirstEvent) {
  const HeldRequest held = Ask({.hold_ms = 0, .keepalive_ms = 0});
  held.exchange->RespondOrEnd(Refusal(), {});
  EXPECT_EQ(client_.Read().body, "full");
}

TEST_F(EventStreamTest, AClientThatLeavesDuringTheSilenceIsNoticed) {
  for (const bool resets : {true, false}) {
    RawClient client(server_.port());
    client.Post("/hold", "");
    const HeldRequest held = server_.Next();
    std::atomic<bool> gone{false};
    held.exchange->OnDisconnect([&gone] { gone = true; });
    held.exchange->ExpectEvents(kSoon);
    client.ReadUntil(":\n\n\r\n");
    resets ? client.Reset() : client.Close();
    AwaitTrue([&gone] { return gone.load(); });
  }
}

}  // namespace
}  // namespace baton
