#include "common/config/foreign_flags.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "common/config/option_table.h"

namespace baton::config {
namespace {

TEST(ForeignFlagsTest, AreNotOurs) {
  for (const std::string& name : ForeignFlagNames()) {
    const Option* option = FindByFlag(name);
    const bool ours = option != nullptr && RolesText(*option) != "model";
    EXPECT_FALSE(ours) << name << " is an option or alias by now";
  }
  for (const Option& option : OptionTable()) {
    // A mistyped flag of ours must not be taken for one of theirs.
    const std::string typed = option.flag.substr(0, option.flag.size() - 1);
    EXPECT_EQ(ForeignFlagAdvice(typed).find("nothing like it"), std::string::npos) << typed;
  }
}

TEST(ForeignFlagsTest, AdviceNamesFlagsThatExist) {
  for (const std::string& name : ForeignFlagNames()) {
    std::string sample = name;
    std::replace(sample.begin(), sample.end(), '*', 'x');
    const std::string advice = ForeignFlagAdvice(sample);
    ASSERT_NE(advice, "") << sample;
    for (size_t at = advice.find("--"); at != std::string::npos; at = advice.find("--", at + 2)) {
      const size_t end = advice.find_first_not_of("abcdefghijklmnopqrstuvwxyz-", at + 2);
      EXPECT_NE(FindByFlag(advice.substr(at + 2, end - at - 2)), nullptr) << advice;
    }
  }
}

}  // namespace
}  // namespace baton::config
