#include "common/grammar/constraint.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/grammar/testing/match_text.h"

namespace baton::grammar {
namespace {

// All bytes, pieces of JSON and of words, and special tokens.
std::vector<VocabularyToken> Tokens() {
  std::vector<VocabularyToken> tokens;
  tokens.reserve(512);
  for (int byte = 0; byte < 256; ++byte)
    tokens.push_back({std::string(1, static_cast<char>(byte))});
  for (const char* piece :
       {"{\"",    "\":",       "\": ",      "\", \"", "\"}",   "}}",    "]}",     "{}",
        "[]",     ", ",        ",\n",       "\n  ",   " \"",   "the",   " the",   "name",
        "\"name", "\"name\":", "12",        "123",    "0.5",   "true",  " null",  "ä",
        "😀",      "\xc3",      "aä",        "\\n",    "\\u00", "a\"",   "abc\",", "hello world",
        "  ",     "        ",  "\"a\": 1}", "1]",     "1, 2",  "x\"]}", "ab",     "abc",
        "abcd",   "abcde",     "abcdef"}) {
    tokens.push_back({piece});
  }
  tokens.push_back({"<end>", true});
  tokens.push_back({"<call>", true});
  tokens.push_back({""});
  return tokens;
}

std::shared_ptr<const Vocabulary> Words() {
  static const auto* const words =
      new std::shared_ptr<const Vocabulary>(std::make_shared<Vocabulary>(Tokens()));
  return *words;
}

// What a mask must be: each token tried by itself.
void ExpectExact(const Constraint& constraint, TextState text, const std::string& so_far) {
  const auto mask = constraint.MaskOf(text);
  ASSERT_TRUE(mask.ok()) << mask.status();
  bool any = false;
  for (size_t id = 0; id < Words()->size(); ++id) {
    const auto token = static_cast<int32_t>(id);
    TextState next = text;
    const bool fits = constraint.Append(next, token).ok();
    any |= fits;
    ASSERT_EQ((*mask)->Allows(token), fits)
        << "token " << id << " '" << Words()->BytesOf(token) << "' behind '" << so_far << "'";
  }
  EXPECT_EQ((*mask)->any, any);
  EXPECT_EQ((*mask)->ends, constraint.CanEnd(text));
}

std::vector<Source> Sources() {
  return {
      Schema("{}"),
      Schema(R"({"type": "object", "properties": {"name": {"type": "string"},
                 "a": {"type": "integer"}, "l": {"items": {"type": "number"}}}})"),
      Schema(R"({"items": {"type": "string", "maxLength": 5}})"),
      Schema(R"({"items": {"type": "string", "minLength": 3, "maxLength": 40}})"),
      Schema(R"({"type": "string", "minLength": 9})"),
      Schema(R"({"properties": {"ab": {"const": 1}}, "additionalProperties": true})"),
      Schema(R"({"type": "string", "pattern": "^[a-d]{2,8}(ä|é)+$"})"),
      Regex("[a-f]{1,6}"),
      Regex("(ab|abc|the )*x?"),
      Regex("([a-z]{5,9} ){2}"),
      Ebnf("root ::= word (\" \" word)*\nword ::= [a-z]{1,5} | \"(\" root \")\""),
      Ebnf("root ::= %special \"<call>\" root | \"x\""),
      {.kind = Source::Kind::kChoice, .choices = {"the", "the name", "ab"}},
  };
}

TEST(ConstraintTest, MasksAreExactOnRandomTexts) {
  Random random(3);
  for (const Source& source : Sources()) {
    for (const bool prepared : {false, true}) {
      Constraint constraint(Compile(source).value(), Words());
      if (prepared) constraint.Prepare();
      for (int round = 0; round < 6; ++round) {
        TextState text = constraint.Begin();
        std::string so_far;
        for (int length = 0; length < 25; ++length) {
          ExpectExact(constraint, text, so_far);
          if (HasFatalFailure()) return;
          const auto mask = constraint.MaskOf(text).value();
          std::vector<int32_t> allowed;
          for (size_t id = 0; id < Words()->size(); ++id) {
            if (mask->Allows(static_cast<int32_t>(id))) allowed.push_back(static_cast<int32_t>(id));
          }
          if (allowed.empty()) {
            EXPECT_TRUE(mask->ends);
            break;
          }
          const int32_t token = allowed[random.Below(allowed.size())];
          so_far += Words()->BytesOf(token);
          ASSERT_TRUE(constraint.Append(text, token).ok());
        }
      }
    }
  }
}

TEST(ConstraintTest, SpecialTokensAreNoText) {
  const auto special = static_cast<int32_t>(Words()->size()) - 2;  // <call>
  const Constraint any(Compile(Ebnf("root ::= .*")).value(), Words());
  TextState text = any.Begin();
  EXPECT_FALSE(any.MaskOf(text).value()->Allows(special));
  EXPECT_FALSE(any.MaskOf(text).value()->Allows(0xFF));
  EXPECT_TRUE(any.MaskOf(text).value()->Allows('a'));
  EXPECT_FALSE(any.Append(text, special).ok());
  EXPECT_FALSE(any.Append(text, -1).ok());
  EXPECT_FALSE(any.Append(text, 1 << 20).ok());
  const Constraint call(Compile(Ebnf("root ::= %special \"<call>\" \"x\"")).value(), Words());
  text = call.Begin();
  EXPECT_TRUE(call.MaskOf(text).value()->Allows(special));
  EXPECT_TRUE(call.MaskOf(text).value()->Allows('<'));
  ASSERT_TRUE(call.Append(text, special).ok());
  ASSERT_TRUE(call.Append(text, 'x').ok());
  EXPECT_TRUE(call.CanEnd(text));
  EXPECT_FALSE(call.MaskOf(text).value()->any);
}

TEST(ConstraintTest, StateFollowsFromTheTextAlone) {
  const Constraint constraint(Compile(Schema("{}")).value(), Words());
  TextState pieces = constraint.Begin();
  for (const char c : std::string("{\"the\": [12, \"a")) {
    ASSERT_TRUE(constraint.Append(pieces, static_cast<uint8_t>(c)).ok());
  }
  TextState whole = constraint.Begin();
  ASSERT_TRUE(constraint.AppendBytes(whole, "{\"the\": [12, \"a").ok());
  EXPECT_EQ(constraint.MaskOf(pieces).value()->words, constraint.MaskOf(whole).value()->words);
}

// Texts outlive the table that they began in.
TEST(ConstraintTest, ATableThatIsFullIsRenewed) {
  const Constraint constraint(Compile(Schema(R"({"items": {"$ref": "#"}})")).value(), Words());
  TextState early = constraint.Begin();
  ASSERT_TRUE(constraint.AppendBytes(early, "[[").ok());
  TextState text = constraint.Begin();
  for (int i = 0; i < 200'000; ++i) ASSERT_TRUE(constraint.AppendBytes(text, "[").ok()) << i;
  EXPECT_FALSE(constraint.CanEnd(text));
  ASSERT_TRUE(constraint.AppendBytes(early, "]").ok());
  EXPECT_FALSE(constraint.CanEnd(early));
  ExpectExact(constraint, early, "[[]");
  ASSERT_TRUE(constraint.AppendBytes(early, "]").ok());
  EXPECT_TRUE(constraint.CanEnd(early));
}

TEST(ConstraintTest, TooAmbiguousIsAnError) {
  const Constraint constraint(Compile(Regex("x{40}(a?){1020}")).value(), Words());
  TextState text = constraint.Begin();
  ASSERT_TRUE(constraint.AppendBytes(text, std::string(40, 'x')).ok());
  EXPECT_EQ(constraint.Append(text, 'a').code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(constraint.Append(text, 'y').code(), absl::StatusCode::kFailedPrecondition);
}

// All words of up to three letters, and digits.
std::shared_ptr<const Vocabulary> ShortWords() {
  std::vector<VocabularyToken> tokens;
  for (char digit = '0'; digit <= '9'; ++digit) tokens.push_back({std::string(1, digit)});
  std::vector<std::string> words = {""};
  for (size_t i = 0; i < words.size(); ++i) {
    for (char letter = 'a'; words[i].size() < 3 && letter <= 'z'; ++letter) {
      tokens.push_back({words[i] + letter});
      words.push_back(words[i] + letter);
    }
  }
  return std::make_shared<const Vocabulary>(tokens);
}

TEST(ConstraintTest, WhatTakesTooLongPlaceByPlaceIsFoundAsAWhole) {
  std::string ways = "q1";
  for (int i = 0; i < 900; ++i) absl::StrAppend(&ways, "|[a-y]*", i, "[a-m]?");
  const Constraint constraint(Compile(Regex(ways)).value(), ShortWords());
  TextState text = constraint.Begin();
  ASSERT_TRUE(constraint.AppendBytes(text, "a").ok());
  const auto mask = constraint.MaskOf(text);
  ASSERT_TRUE(mask.ok()) << mask.status();
  for (size_t id = 0; id < constraint.vocabulary().size(); ++id) {
    TextState next = text;
    const auto token = static_cast<int32_t>(id);
    ASSERT_EQ((*mask)->Allows(token), constraint.Append(next, token).ok())
        << constraint.vocabulary().BytesOf(token);
  }
}

// Its places grow with every letter of a token, differently for every word.
TEST(ConstraintTest, AMaskThatWouldHoldUpOthersIsRefused) {
  const Constraint constraint(Compile(Ebnf(R"(root ::= s
                      s ::= [a-z] s | "a" s s | "a" s | "a" | [a-z] s | [a-z] s s | "b" s s)"))
                                  .value(),
                              ShortWords());
  TextState text = constraint.Begin();
  absl::Status status;
  for (int i = 0; status.ok() && i < 500; ++i) {
    status = constraint.MaskOf(text).status();
    if (status.ok()) status = constraint.AppendBytes(text, "a");
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

}  // namespace
}  // namespace baton::grammar
