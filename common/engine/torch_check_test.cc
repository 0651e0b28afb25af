#include "common/engine/torch_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

namespace baton {
namespace {

using testing::HasSubstr;

TEST(TorchCheckTest, ThePluginOfThisExecutableLoadsAndIsNotHere) {
  EXPECT_TRUE(CheckTorch().ok()) << CheckTorch();
  std::ifstream maps("/proc/self/maps");
  const std::string mapped((std::istreambuf_iterator<char>(maps)), {});
  EXPECT_EQ(mapped.find("libtorch_cpu.so"), std::string::npos)
      << "it was loaded by another process";
}

TEST(TorchCheckTest, SaysWhatToInstallWhereThereIsNone) {
  const absl::Status status = CheckTorch({"/absent/a.so", "/absent/b.so"});
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(),
            "the torch backend is not installed: install the package baton-torch, which brings "
            "libtorch (looked for /absent/a.so, /absent/b.so)");
}

TEST(TorchCheckTest, SaysWhyOneCannotBeLoaded) {
  const std::string path = testing::TempDir() + "/no_library.so";
  std::ofstream(path) << "not a library";
  const absl::Status status = CheckTorch({"/absent/a.so", path});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr(path + " can't be loaded: " + path));
  EXPECT_THAT(std::string(status.message()), HasSubstr("install the package baton-torch"));
}

}  // namespace
}  // namespace baton
