#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "common/base/files.h"

namespace baton {
namespace {

std::string TextOf(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::string EmptyDirectory(const std::string& name) {
  std::string path = testing::TempDir() + "/replace_file_" + name;
  std::filesystem::remove_all(path);
  std::filesystem::create_directory(path);
  return path;
}

size_t FilesIn(const std::string& path) {
  const std::filesystem::directory_iterator files(path);
  return static_cast<size_t>(std::distance(begin(files), end(files)));
}

TEST(ReplaceFileTest, TheTextStandsAloneInTheFile) {
  const std::string directory = EmptyDirectory("text");
  const std::string path = directory + "/file";
  ASSERT_TRUE(ReplaceFile(path, std::string(100'000, 'x')).ok());
  EXPECT_EQ(TextOf(path).size(), 100'000u);
  ASSERT_TRUE(ReplaceFile(path, "short").ok());
  EXPECT_EQ(TextOf(path), "short");
  EXPECT_EQ(FilesIn(directory), 1u);
}

TEST(ReplaceFileTest, WhatCannotBeWrittenLeavesNothing) {
  const absl::Status nowhere = ReplaceFile("/nowhere/at/all", "text");
  EXPECT_EQ(nowhere.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(nowhere.message().find("/nowhere/at/all"), absl::string_view::npos) << nowhere;
  const std::string directory = EmptyDirectory("taken");
  std::filesystem::create_directory(directory + "/file");
  std::ofstream(directory + "/file/inside") << "kept";
  const absl::Status taken = ReplaceFile(directory + "/file", "text");
  EXPECT_FALSE(taken.ok());
  EXPECT_NE(taken.message().find("rename"), absl::string_view::npos) << taken;
  EXPECT_EQ(TextOf(directory + "/file/inside"), "kept");
  EXPECT_EQ(FilesIn(directory), 1u);
}

}  // namespace
}  // namespace baton
