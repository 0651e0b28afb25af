// What Python's jinja2 makes of the templates and conversations in testdata/, byte for byte
// (tests/parity/chat_template_fixtures.py wrote it), and mutations of those templates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "common/tokenizer/chat/jinja/json.h"
#include "common/tokenizer/chat/jinja/template.h"
#include "common/tokenizer/words/utf8.h"

namespace baton::jinja {
namespace {

constexpr char kTestdata[] = "common/tokenizer/chat/testdata/";

std::string Read(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::map<std::string, std::string> Sources() {
  std::map<std::string, std::string> sources;
  for (const auto& file :
       std::filesystem::directory_iterator(std::string(kTestdata) + "templates")) {
    sources[file.path().stem().string()] = Read(file.path().string());
  }
  return sources;
}

Value Parsed(const std::string& file) {
  return ParseJsonValue(Read(kTestdata + file), Origin::kClient).value();
}

// Friday, 4 July 2025, 13:05.
std::tm Now() {
  std::tm now{};
  now.tm_year = 125;
  now.tm_mon = 6;
  now.tm_mday = 4;
  now.tm_hour = 13;
  now.tm_min = 5;
  now.tm_wday = 5;
  now.tm_yday = 184;
  return now;
}

std::string Fnv1a(const std::string& text) {
  uint64_t digest = 0xCBF29CE484222325;
  for (const char byte : text) digest = (digest ^ static_cast<uint8_t>(byte)) * 0x100000001B3;
  char spelled[17];
  std::snprintf(spelled, sizeof(spelled), "%016lx", static_cast<unsigned long>(digest));
  return spelled;
}

TEST(GoldenTest, RendersAsJinja2Does) {
  const Value conversations = Parsed("conversations.json");
  const Value goldens = Parsed("goldens.json");
  const auto sources = Sources();
  EXPECT_GE(sources.size(), 25u);
  for (const auto& [name, source] : sources) {
    const auto parsed = Template::Parse(source);
    ASSERT_TRUE(parsed.ok()) << name << ": " << parsed.status();
    const List& expected = goldens.dict().Find(name)->items();
    ASSERT_EQ(expected.size(), conversations.items().size());
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto text = parsed->Render(conversations.items()[i].dict(), Now());
      const std::string& golden = expected[i].str();
      if (golden[0] != '!') {
        ASSERT_TRUE(text.ok()) << name << " " << i << ": " << text.status();
        EXPECT_EQ(Fnv1a(text->bytes()), golden) << name << " " << i << "\n" << text->bytes();
      } else if (golden.size() > 1) {
        EXPECT_EQ(text.status().message(), golden.substr(1)) << name << " " << i;
      } else {
        EXPECT_FALSE(text.ok()) << name << " " << i;
      }
    }
  }
}

// A client's text may be any: whatever comes through unchanged has to be marked.
TEST(GoldenTest, WhatAClientWroteStaysMarked) {
  const Value conversations = Parsed("conversations.json");
  for (const auto& [name, source] : Sources()) {
    const auto parsed = Template::Parse(source).value();
    for (const Value& conversation : conversations.items()) {
      const auto text = parsed.Render(conversation.dict(), Now());
      if (!text.ok()) continue;
      // Words of the conversations that no template contains.
      for (const std::string word : {"naïve", "東京", "Zürich", "\"celsius", "get_weather"}) {
        const std::string& bytes = text->bytes();
        for (size_t at = bytes.find(word); at != std::string::npos; at = bytes.find(word, at + 1)) {
          for (size_t i = at; i < at + word.size(); ++i) {
            ASSERT_EQ(text->OriginAt(i), Origin::kClient) << name << ": " << bytes;
          }
        }
      }
    }
  }
}

// One change: a character gone, doubled or another one, or a piece of another template.
std::string Mutated(std::string text, const std::vector<std::string>& sources, std::mt19937& rng) {
  constexpr std::string_view kPieces[] = {
      "{{", "}}",   "{%",  "%}",   "-%}",          "(", ")", "[", "::-1]", "|", "~", "not",
      "is", "loop", "**9", "*999", "range(99999)", "}", "{", "'", "\\"};
  const size_t at = rng() % (text.size() + 1);
  switch (rng() % 4) {
    case 0:
      return text.erase(std::min(at, text.size() - 1), 1 + rng() % 4);
    case 1:
      return text.insert(at, kPieces[rng() % std::size(kPieces)]);
    case 2: {
      const std::string& other = sources[rng() % sources.size()];
      return text.insert(at, other.substr(rng() % other.size(), rng() % 200));
    }
    default:
      text[std::min(at, text.size() - 1)] = static_cast<char>(rng() % 127 + 1);
      return text;
  }
}

TEST(MutationTest, NoTemplateDoesHarm) {
  const Value conversations = Parsed("conversations.json");
  std::vector<std::string> sources;
  for (const auto& [name, source] : Sources()) sources.push_back(source);
  const RenderLimits limits = {
      .steps = 50'000, .work_bytes = 4 << 20, .output_bytes = 1 << 20, .depth = 400};
  std::mt19937 rng(30);
  int parsed = 0;
  int rendered = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string source = sources[rng() % sources.size()];
    for (size_t changes = 1 + rng() % 3; changes > 0 && !source.empty(); --changes) {
      source = Mutated(std::move(source), sources, rng);
    }
    const auto made = Template::Parse(source);
    if (!made.ok()) {
      EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument) << made.status();
      continue;
    }
    ++parsed;
    const List& all = conversations.items();
    const auto text = made->Render(all[rng() % all.size()].dict(), Now(), limits);
    if (!text.ok()) {
      EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument) << text.status();
      continue;
    }
    ++rendered;
    EXPECT_LE(text->size(), limits.output_bytes);
    EXPECT_FALSE(FirstInvalidUtf8(text->bytes()).has_value());
    size_t end = 0;
    for (const ByteRange& range : text->client_ranges()) {
      EXPECT_LT(range.begin, range.end);
      EXPECT_GE(range.begin, end);
      end = range.end;
    }
    EXPECT_LE(end, text->size());
  }
  EXPECT_GT(parsed, 200);
  EXPECT_GT(rendered, 100);
}

}  // namespace
}  // namespace baton::jinja
