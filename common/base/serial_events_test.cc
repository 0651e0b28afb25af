#include "common/base/serial_events.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace baton {
namespace {

TEST(SerialEventsTest, WhatAnEventRaisesIsHandledAfterIt) {
  std::vector<std::string> log;
  SerialEvents<int>* raise = nullptr;
  SerialEvents<int> events([&](int event) {
    log.push_back("begin " + std::to_string(event));
    if (event < 3) {
      raise->Raise(event * 2);
      raise->Raise(event * 2 + 1);
    }
    log.push_back("end " + std::to_string(event));
  });
  raise = &events;
  events.Raise(1);
  EXPECT_EQ(log, (std::vector<std::string>{"begin 1", "end 1", "begin 2", "end 2", "begin 3",
                                           "end 3", "begin 4", "end 4", "begin 5", "end 5"}));
}

}  // namespace
}  // namespace baton
