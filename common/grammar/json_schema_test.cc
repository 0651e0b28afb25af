#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/grammar/notations.h"
#include "common/grammar/testing/match_text.h"

namespace baton::grammar {
namespace {

struct Case {
  const char* schema;
  std::vector<std::string> texts;
  std::vector<std::string> others;
};

void Check(const std::vector<Case>& cases) {
  for (const Case& of : cases) {
    const Matcher matcher(Schema(of.schema));
    ASSERT_EQ(matcher.error(), "") << of.schema;
    for (const std::string& text : of.texts) {
      EXPECT_TRUE(matcher.Matches(text)) << of.schema << " " << text;
      EXPECT_TRUE(nlohmann::json::accept(text)) << text;
    }
    for (const std::string& text : of.others) {
      EXPECT_FALSE(matcher.Matches(text)) << of.schema << " " << text;
    }
  }
}

TEST(JsonSchemaTest, Scalars) {
  Check({
      {"{}",
       {"1", "\"a\"", "null", R"({"a": [1, {"b": -2.5e10}]})", "[]", "{}", "{\n  \"a\": 1\n}"},
       {"", "nul", "{a}", "[1,]", "01", " 1", "1 "}},
      {"true", {"1"}, {""}},
      {R"({"type": "string"})",
       {R"("")", R"("aä😀\n\u00e4\ud83d\ude00")"},
       {"\"a\nb\"", R"("\x")", R"("\ud83d")", "a", R"("a)", "\"\xff\""}},
      {R"({"type": "string", "minLength": 2, "maxLength": 3})",
       {R"("ab")", R"("äö\n")"},
       {R"("a")", R"("abcd")"}},
      {R"({"type": "string", "minLength": 6})",
       {R"("abcdef")", R"("abcdefghijkl")"},
       {R"("abcde")"}},
      {R"({"type": "boolean"})", {"true", "false"}, {"null", "True"}},
      {R"({"type": "null"})", {"null"}, {"0"}},
      {R"({"type": "integer"})",
       {"0", "-12", "123456789012345678"},
       {"1.0", "01", "+1", "1234567890123456789"}},
      {R"({"type": "number"})", {"0", "-1.5", "1e9", "2.5E-10"}, {".5", "1.", "1e999", "0x1"}},
      {R"({"type": ["string", "null"]})", {"\"\"", "null"}, {"1"}},
      {R"({"type": "string", "nullable": true})", {"\"\"", "null"}, {"1"}},
      {R"({"enum": ["a", 1, null, {"b": [true]}, "ä\"\n"]})",
       {"\"a\"", "1", "null", R"({"b": [true]})", R"({"b":[true]})", R"("ä\"\n")"},
       {"2", "\"b\""}},
      {R"({"const": "x", "type": "string"})", {"\"x\""}, {"\"y\""}},
      {R"({"type": "string", "enum": ["a", 1]})", {"\"a\""}, {"1"}},
  });
}

TEST(JsonSchemaTest, Bounds) {
  for (const auto& [least, most] : std::vector<std::pair<int, int>>{
           {0, 9}, {0, 100}, {7, 123}, {-5, 5}, {-120, -17}, {99, 101}, {-1000, 0}, {42, 42}}) {
    const std::string bounds =
        "\"minimum\": " + std::to_string(least) + ", \"maximum\": " + std::to_string(most);
    const Matcher integer(Schema("{\"type\": \"integer\", " + bounds + "}"));
    const Matcher number(Schema("{\"type\": \"number\", " + bounds + "}"));
    for (int i = -1100; i <= 1100; ++i) {
      const bool in = least <= i && i <= most;
      ASSERT_EQ(integer.Matches(std::to_string(i)), in) << bounds << " " << i;
      ASSERT_EQ(number.Matches(std::to_string(i)), in) << bounds << " " << i;
      for (const char* part : {".25", ".0", ".999"}) {
        const std::string text = std::to_string(i) + part;
        const double value = std::stod(text);
        ASSERT_EQ(number.Matches(text), least <= value && value <= most && text != "-0.0")
            << bounds << " " << text;
      }
    }
  }
  Check({
      {R"({"type": "number", "exclusiveMinimum": 0})",
       {"0.1", "1", "100.0", "123456"},
       {"0", "0.0", "-1"}},
      {R"({"type": "number", "exclusiveMaximum": 1, "minimum": 0})", {"0", "0.999"}, {"1", "1.0"}},
      {R"({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5})", {"4"}, {"3", "5"}},
      {R"({"type": "integer", "minimum": 1.5})", {"2", "999"}, {"1"}},
      {R"({"minimum": -2})", {"-2", "-1.5", "7"}, {"-3", "-2.5", "\"a\""}},
  });
}

TEST(JsonSchemaTest, Objects) {
  Check({
      {R"({"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}},
           "required": ["b", "a"]})",
       {R"({"b": 1, "a": "x"})", R"({"b":1,"a":"x"})", "{\n  \"b\": 1,\n  \"a\": \"x\"\n}"},
       {R"({"a": "x", "b": 1})", R"({"b": 1})", R"({"b": 1, "a": "x", "c": 2})", "{}",
        R"({"b": 1,  "a": "x"})"}},
      {R"({"properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}},
           "required": ["b"]})",
       {R"({"b": 2})", R"({"a": 1, "b": 2})", R"({"b": 2, "c": 3})", R"({"a": 1, "b": 2, "c": 3})"},
       {R"({"a": 1})", R"({"a": 1, "c": 3})", R"({"c": 3, "b": 2})", "{}"}},
      {R"({"properties": {"a": {"const": 1}, "b": {"const": 2}}})",
       {"{}", R"({"a": 1})", R"({"b": 2})", R"({"a": 1, "b": 2})"},
       {R"({"b": 2, "a": 1})", R"({,"a": 1})", R"({"a": 1,})"}},
      {R"({"type": "object"})", {"{}", R"({"a": 1, "b": {"c": []}})"}, {"[]", "1"}},
      {R"({"type": "object", "additionalProperties": {"type": "integer"}})",
       {"{}", R"({"a": 1, "b": 2})"},
       {R"({"a": "x"})"}},
      {R"({"properties": {"ab": {"const": 1}}, "additionalProperties": {"const": 2}})",
       {"{}", R"({"ab": 1})", R"({"ab": 1, "a": 2, "abc": 2, "x": 2, "": 2})", R"({"b": 2})"},
       {R"({"ab": 2})", R"({"ab": 1, "ab": 2})", R"({"a\u0062": 2})", R"({"x": 2, "ab": 1})"}},
      {R"({"type": "object", "properties": {}, "additionalProperties": false})",
       {"{}"},
       {R"({"a": 1})"}},
      {R"({"type": "object", "required": ["a"]})", {R"({"a": [1]})"}, {"{}"}},
      {R"({"type": "object", "minProperties": 1, "maxProperties": 2})",
       {R"({"a": 1})", R"({"a": 1, "b": 2})"},
       {"{}", R"({"a": 1, "b": 2, "c": 3})"}},
  });
}

TEST(JsonSchemaTest, ArraysAndCombinations) {
  Check({
      {R"({"type": "array"})", {"[]", "[1, \"a\", [null]]"}, {"[1"}},
      {R"({"items": {"type": "integer"}, "minItems": 1, "maxItems": 3})",
       {"[1]", "[1, 2, 3]", "[\n  1,\n  2\n]"},
       {"[]", "[1, 2, 3, 4]", "[\"a\"]"}},
      {R"({"items": {"const": 1}, "maxItems": 0})", {"[]"}, {"[1]"}},
      {R"({"prefixItems": [{"const": 1}, {"const": 2}], "items": {"const": 3}, "minItems": 1})",
       {"[1]", "[1, 2]", "[1, 2, 3, 3]"},
       {"[]", "[2]", "[1, 3]"}},
      {R"({"prefixItems": [{"const": 1}, {"const": 2}], "items": false, "minItems": 2})",
       {"[1, 2]"},
       {"[1]", "[1, 2, 3]"}},
      {R"({"anyOf": [{"type": "integer"}, {"type": "null"}]})", {"1", "null"}, {"\"a\""}},
      {R"({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}},
           "anyOf": [{"required": ["a"]}, {"required": ["b"]}]})",
       {R"({"a": 1})", R"({"b": 2})", R"({"a": 1, "b": 2})"},
       {"{}"}},
      {R"({"oneOf": [{"type": "object", "properties": {"kind": {"const": "a"}, "x": {"const": 1}},
                      "required": ["kind", "x"]},
                     {"type": "object", "properties": {"kind": {"const": "b"}},
                      "required": ["kind"]}]})",
       {R"({"kind": "a", "x": 1})", R"({"kind": "b"})"},
       {R"({"kind": "b", "x": 1})"}},
      {R"({"allOf": [{"$ref": "#/$defs/a"}, {"properties": {"c": {"const": 3}}, "required": ["c"]}],
           "$defs": {"a": {"type": "object", "properties": {"b": {"const": 2}}}}})",
       {R"({"b": 2, "c": 3})", R"({"c": 3})"},
       {R"({"b": 2})", R"({"c": 3, "b": 2})"}},
      {R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties":
           {"v": {"type": "integer"},
            "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
           "required": ["v", "next"]}}})",
       {R"({"v": 1, "next": null})", R"({"v": 1, "next": {"v": 2, "next": null}})"},
       {R"({"v": 1})"}},
      {R"({"type": "array", "items": {"$ref": "#"}})", {"[]", "[[], [[]]]"}, {"[1]"}},
  });
}

TEST(JsonSchemaTest, PatternsAndFormats) {
  Check({
      {R"({"pattern": "^[a-z]{2,4}$"})", {R"("ab")"}, {R"("a")", R"("abcde")", R"("AB")"}},
      {R"({"pattern": "b+"})", {R"("b")", R"("abbc\n")"}, {R"("ac")"}},
      {R"({"pattern": "^[\"\\\\\n/]+$"})", {R"("\"\\\n/")", R"("\/")"}, {R"("a")", "\"\"\""}},
      {R"({"pattern": "^a|b$"})", {R"("ax")", R"("xb")"}, {R"("xa")"}},
      {R"({"format": "date"})",
       {R"("2024-02-29")", R"("1999-12-31")"},
       {R"("2023-02-29")", R"("2024-13-01")"}},
      {R"({"format": "date-time"})",
       {R"("2024-05-01T23:59:00Z")", R"("2024-05-01T01:02:03.5+02:00")"},
       {R"("2024-05-01 23:59:00")"}},
      {R"({"format": "time"})", {R"("23:59:00Z")"}, {R"("24:00:00Z")"}},
      {R"({"format": "uuid"})", {R"("123e4567-e89b-12d3-a456-426614174000")"}, {R"("123")"}},
      {R"({"format": "email"})", {R"("a.b@example.org")"}, {R"("a@b")", R"("@b.c")"}},
      {R"({"format": "ipv4"})", {R"("192.168.0.255")"}, {R"("256.1.1.1")"}},
      {R"({"format": "ipv6"})", {R"("fe80:0:0:0:1:2:3:4")"}, {R"("fe80")"}},
      {R"({"format": "hostname"})", {R"("a-b.example")"}, {R"("-a")"}},
      {R"({"format": "duration"})", {R"("P1DT2H")", R"("PT5M")", R"("P2W")"}, {R"("P")"}},
      {R"({"format": "uri"})", {R"("https://a.b/c?d=e")"}, {R"("a b")"}},
      {R"({"type": "string", "format": "password"})", {R"("x")"}, {"1"}},
  });
}

TEST(JsonSchemaTest, WhatIsNotSupportedIsNamedByItsPath) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"properties": {"a": {"items": {"not": {}}}}})",
       "properties.a.items: not is not supported"},
      {R"({"items": {"uniqueItems": true}})", "items: uniqueItems is not supported"},
      {R"({"anyOf": [{"type": "integer"}, {"if": {}, "then": {}}]})",
       "anyOf[1]: if is not supported"},
      {R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})",
       "oneOf: a value may fit both schema 0 and 1, which is not supported; anyOf is"},
      {R"({"$defs": {"a": {"contains": {}}}, "$ref": "#/$defs/a"})",
       "#/$defs/a: contains is not supported"},
      {R"({"$ref": "#/$defs/a"})",
       "$ref: \"#/$defs/a\" points to nothing in the schema; references such as #/$defs/name are "
       "supported"},
      {R"({"$ref": "https://example.org/s"})",
       "$ref: \"https://example.org/s\" points to nothing in the schema; references such as "
       "#/$defs/name are supported"},
      {R"({"$ref": "#"})", "no text can match it"},
      {R"({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}},
           "properties": {"x": {"$ref": "#/$defs/a"}}})",
       "the rule #/$defs/a refers to itself before any text (left recursion)"},
      {R"({"properties": {"a": {"$ref": "#"}}, "required": ["a"]})", "no text can match it"},
      {R"s({"properties": {"a": {"pattern": "(?=x)"}}})s",
       "properties.a.pattern: position 2: looking ahead or behind, and flags, are not supported"},
      {R"({"type": "text"})",
       "type: must be a type's name or a list of such: null, boolean, integer, number, string, "
       "array, object"},
      {R"({"maxLength": 3, "minLength": 4})", "the least length is greater than the most"},
      {R"({"maxLength": 100000})", "maxLength: more than 65536 is not supported"},
      {R"({"maxLength": -1})", "maxLength: must be an integer from 0 on"},
      {R"({"pattern": "a", "maxLength": 3})",
       "pattern beside minLength or maxLength is not supported"},
      {R"({"type": "number", "minimum": 0.5})",
       "minimum: must be an integer; others are not supported"},
      {R"({"multipleOf": 3})", "multipleOf is not supported"},
      {R"({"properties": {"a": {}}, "maxProperties": 0})",
       "minProperties and maxProperties beside properties are not supported"},
      {R"({"properties": 3})", "properties: must be an object"},
      {R"({"properties": {"a": false}, "required": ["a"]})", "properties.a: false allows no value"},
      {R"({"enum": []})", "no value is allowed"},
      {R"([1])", "a schema must be an object, true or false"},
      {R"({"type": )",
       "not valid JSON at byte 10: [json.exception.parse_error.101] parse error at line 1, column "
       "10: "
       "syntax error while parsing value - unexpected end of input; expected '[', '{', or a "
       "literal"},
      {R"({"a": 1, "a": 2})", "the key \"a\" stands twice"},
  };
  for (const auto& [schema, error] : cases) {
    EXPECT_EQ(ErrorOf(Schema(schema)), std::string("json_schema: ") + error) << schema;
  }
}

TEST(JsonSchemaTest, HostileOnesAreRefused) {
  std::string deep;
  for (int i = 0; i < 10'000; ++i) deep += R"({"items":)";
  EXPECT_EQ(ErrorOf(Schema(deep)), "json_schema: nested deeper than 64");
  EXPECT_EQ(ErrorOf(Schema("{\"title\": \"" + std::string(1 << 20, 'a') + "\"}")),
            "json_schema: has 1048589 bytes, more than the 262144 accepted");
  std::string doubled = R"({"$ref": "#/$defs/d0", "$defs": {)";
  for (int i = 0; i < 40; ++i) {
    const std::string next = R"({"$ref": "#/$defs/d)" + std::to_string(i + 1) + "\"}";
    absl::StrAppend(&doubled, "\"d", i, R"(": {"prefixItems": [)", next, ", ", next, "]},");
  }
  EXPECT_EQ(ErrorOf(Schema(doubled + R"("d40": {"const": 1}}})")), "");
  std::string many = R"({"properties": {"a": 1)";
  for (int i = 0; i < 2000; ++i) many += ", \"p" + std::to_string(i) + "\": {}";
  EXPECT_EQ(ErrorOf(Schema(many + "}}")),
            "json_schema: properties.a: a schema must be an object, true or false");
  many.replace(many.find(": 1"), 3, ": {}");
  EXPECT_EQ(ErrorOf(Schema(many + "}}")),
            "json_schema: more than 450 properties that are not required are not supported");
  // As many as there may be can be written, too.
  many = R"({"properties": {"a": true)";
  for (int i = 1; i < 450; ++i)
    many += ", \"p" + std::to_string(i) + R"(": {"type": ["string", "integer"]})";
  EXPECT_TRUE(Matches(Schema(many + "}}"), R"({"a": [1.5], "p1": 12, "p449": "x"})"));
  std::string long_list = R"({"enum": [0)";
  for (int i = 1; i < 30'000; ++i) long_list += "," + std::to_string(i);
  EXPECT_EQ(ErrorOf(Schema(long_list + "]}")), "");
}

}  // namespace
}  // namespace baton::grammar
