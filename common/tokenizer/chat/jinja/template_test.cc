#include "common/tokenizer/chat/jinja/template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/tokenizer/chat/jinja/json.h"

namespace baton::jinja {
namespace {

using testing::HasSubstr;

const char kVariables[] = R"({"s": "Hello, wörld", "n": 7, "f": 2.5, "l": [3, 1, 2], "e": [],
    "d": {"b": 1, "a": {"c": "z"}}, "it": "it's"})";

absl::StatusOr<Text> Render(const std::string& source, const RenderLimits& limits = {}) {
  const auto parsed = Template::Parse(source);
  if (!parsed.ok()) return parsed.status();
  const Value variables = ParseJsonValue(kVariables, Origin::kClient).value();
  std::tm now{};
  now.tm_year = 125;
  now.tm_mday = 2;
  return parsed->Render(variables.dict(), now, limits);
}

std::string Out(const std::string& source) {
  const auto text = Render(source);
  return text.ok() ? text->bytes() : std::string(text.status().message());
}

// The client's part of what is rendered, its ranges between bars.
std::string Marked(const std::string& source) {
  const Text text = Render(source).value();
  std::string marked;
  for (const ByteRange& range : text.client_ranges()) {
    marked += text.bytes().substr(range.begin, range.end - range.begin) + "|";
  }
  return marked;
}

TEST(TemplateTest, ArithmeticIsPythons) {
  EXPECT_EQ(Out("{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ -2 ** 2 }}"),
            "-4 2 3.5 1024 0.5 4");
  EXPECT_EQ(Out("{{ 1e16 }} {{ 0.1 + 0.2 }} {{ 1.5e-7 }} {{ 3.0 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}"),
            "1e+16 0.30000000000000004 1.5e-07 3.0 3.0 0.5");
  EXPECT_THAT(Out("{{ 9223372036854775807 + 1 }}"), HasSubstr("does not fit into 64 bits"));
  EXPECT_THAT(Out("{{ 3 ** 99 }}"), HasSubstr("does not fit into 64 bits"));
  EXPECT_THAT(Out("{{ 1 // 0 }}"), HasSubstr("division by zero"));
  EXPECT_EQ(Out("{{ (-9223372036854775807 - 1) % -1 }}"), "0");
  EXPECT_THAT(Out("{{ (-9223372036854775807 - 1) // -1 }}"), HasSubstr("64 bits"));
}

TEST(TemplateTest, ValuesAreWrittenAsPythonWritesThem) {
  EXPECT_EQ(Out("{{ [1, 2.0, none, true, it, 'a\"b', (1,), {'k': []}] }}"),
            R"([1, 2.0, None, True, "it's", 'a"b', (1,), {'k': []}])");
  EXPECT_EQ(Out("{{ d }}|{{ d | tojson }}|{{ d | tojson(indent=1) }}"),
            "{'b': 1, 'a': {'c': 'z'}}|{\"b\": 1, \"a\": {\"c\": \"z\"}}|"
            "{\n \"b\": 1,\n \"a\": {\n  \"c\": \"z\"\n }\n}");
  EXPECT_EQ(Out("{{ s | tojson }} {{ s | tojson(ensure_ascii=true) }} {{ '<&>' | tojson }}"),
            "\"Hello, wörld\" \"Hello, w\\u00f6rld\" \"<&>\"");
}

TEST(TemplateTest, StringsAreCharacters) {
  EXPECT_EQ(Out("{{ s | length }} {{ s[8] }} {{ s[-4:] }} {{ s[::-1] }} {{ s.find('r') }}"),
            "12 ö örld dlröw ,olleH 9");
  EXPECT_EQ(Out("{{ s.title() }} {{ s | upper }} {{ 'straße'.upper() }} {{ s.count('l') }}"),
            "Hello, Wörld HELLO, WÖRLD STRASSE 3");
  EXPECT_EQ(Out("{{ ' a b '.split() }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'xaxbx'.strip('x') }}"),
            "['a', 'b'] ['a,b', 'c'] axb");
}

TEST(TemplateTest, WhiteSpaceOfTags) {
  EXPECT_EQ(Out("  {% if true %}\n  a\n  {% endif %}\nb\n"), "  a\nb");
  EXPECT_EQ(Out("a  {%- if true -%}  b  {%- endif +%}\nc"), "ab\nc");
  EXPECT_EQ(Out("a\n  {%+ if true %} b{% endif %}"), "a\n   b");
  EXPECT_EQ(Out("a\r\nb {# c #}\nd{{ '\\n' }}\n\n"), "a\nb d\n\n");
  EXPECT_EQ(Out("{% raw %}{{ x }}{% endraw %}"), "{{ x }}");
}

TEST(TemplateTest, VariablesLiveInTheirBlock) {
  EXPECT_EQ(Out("{% set x = 1 %}{% for i in l %}{% set x = i %}{% endfor %}{{ x }}"), "1");
  EXPECT_EQ(Out("{% if true %}{% set x = 2 %}{% endif %}{{ x }}"), "2");
  EXPECT_EQ(Out("{% set ns = namespace(x=0) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}"
                "{{ ns.x }}"),
            "6");
  EXPECT_EQ(Out("{% macro m(a, b=a) %}{{ a }}{{ b }}{{ y }}{% endmacro %}{% set y = 9 %}"
                "{{ m(1) }}{{ m(1, b=2) }}"),
            "119129");
}

TEST(TemplateTest, WhatIsUndefined) {
  EXPECT_EQ(Out("{{ x }}|{{ d.x }}|{{ l[9] }}|{{ x is defined }}|{{ x | default('d') }}"),
            "|||False|d");
  EXPECT_EQ(Out("{{ x.y }}"), "line 1: 'x' is undefined");
  EXPECT_EQ(Out("\n{{ d.x.y }}"), "line 2: 'dict object' has no attribute 'x'");
  EXPECT_EQ(Out("{{ 'a' + x }}"), "line 1: 'x' is undefined");
}

TEST(TemplateTest, NothingGivenCanBeChanged) {
  EXPECT_THAT(Out("{{ l.append(4) }}"), HasSubstr("unsafe"));
  EXPECT_THAT(Out("{{ d.update({'a': 1}) }}"), HasSubstr("unsafe"));
  EXPECT_EQ(Out("{{ s.__class__ is defined }}{{ d.__init__ is defined }}"), "FalseFalse");
}

TEST(TemplateTest, RefusesWhatIsNoTemplate) {
  EXPECT_THAT(Out("a\n{% if x %}\n"), HasSubstr("line 2: expected the tag endif"));
  EXPECT_THAT(Out("a\n\n{{ x + }}"), HasSubstr("line 3: expected an expression, found }}"));
  EXPECT_THAT(Out("{% include 'x' %}"), HasSubstr("'include' is not supported"));
  EXPECT_THAT(Out("{% foo %}"), HasSubstr("no tag named 'foo'"));
  EXPECT_THAT(Out("{{ x | foo }}"), HasSubstr("no filter named 'foo'"));
  EXPECT_THAT(Out("{{ 'abc }}"), HasSubstr("the string has no end"));
  EXPECT_THAT(Out("{{ (1] }}"), HasSubstr("unexpected ']', expected ')'"));
  EXPECT_THAT(Out("{{ \xFF }}"), HasSubstr("not UTF-8 at byte 3"));
  EXPECT_THAT(Out(std::string(2 << 20, 'a')), HasSubstr("at most 1048576 are accepted"));
  // What may never be come to is no reason to refuse a template.
  EXPECT_EQ(Out("{% if false %}{{ x | foo }}{% endif %}{{ (x | foo) if false else 1 }}"), "1");
}

TEST(TemplateTest, ItsOwnRefusalHasItsWords) {
  EXPECT_EQ(Out("{{ raise_exception('No ' ~ n ~ '!') }}"), "No 7!");
  EXPECT_EQ(Out("{{ strftime_now('%Y-%m-%d') }}"), "2025-01-02");
}

TEST(TemplateTest, MarksFollowEveryOperation) {
  EXPECT_EQ(Marked("<{{ s }}>"), "Hello, wörld|");
  EXPECT_EQ(Marked("{{ 'a' + s[1:3] + 'b' ~ n }}"), "el|");
  EXPECT_EQ(Marked("{{ s.split(', ') | join('-') }}"), "Hello|wörld|");
  EXPECT_EQ(Marked("{{ s.replace('l', 'L') }}"), "He|o, wör|d|");
  EXPECT_EQ(Marked("{{ '<' ~ s.strip('Hd') ~ '>' }}{{ ' x ' | trim }}"), "ello, wörl|");
  EXPECT_EQ(Marked("{{ s | upper }}{{ s[:2] | title }}{{ s[::-1] }}"),
            "HELLO, WÖRLDHedlröw ,olleH|");
  EXPECT_EQ(Marked("{{ d | tojson }}{{ d }}{{ d.items() | list }}"), "b|a|c|z|b|a|c|z|b|a|c|z|");
  EXPECT_EQ(Marked("{{ '%s:%5s' | format('x', s[:2]) }}{{ '{}'.format(s[:2]) }}"), "HeHe|");
  EXPECT_EQ(Marked("{% set x %}a{{ s[0] }}{% endset %}{{ x }}"), "H|");
  EXPECT_EQ(Marked("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(s[0]) | indent }}"), "H|");
  EXPECT_EQ(Marked("{% for c in s[:2] %}[{{ c }}]{% endfor %}{{ it | e }}"), "H|e|it&#39;s|");
}

TEST(TemplateTest, KnowsTheFormOfContentThatItTakes) {
  const auto visits = [](const char* source) {
    return Template::Parse(source).value().VisitsContent();
  };
  EXPECT_TRUE(visits("{% for m in ms %}{% for p in m['content'] %}x{% endfor %}{% endfor %}"));
  EXPECT_TRUE(
      visits("{% macro f(content) %}{% for p in content | list %}x{% endfor %}{% endmacro %}"));
  EXPECT_FALSE(visits("{% for m in ms %}{{ m.content }}{% endfor %}"));
  EXPECT_TRUE(Template::Parse("{{ 1 if m.content is string }}").value().AsksForString());
  EXPECT_FALSE(Template::Parse("{{ 'string' }}").value().AsksForString());
}

TEST(LimitsTest, EndsWhatHasNoEnd) {
  const char* kLoop =
      "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}";
  EXPECT_THAT(Out(kLoop), HasSubstr("too many"));
  EXPECT_THAT(Out("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
              HasSubstr("calls itself too often"));
  EXPECT_THAT(Out("{% set ns = namespace(x='ab') %}{% for i in range(99) %}"
                  "{% set ns.x = ns.x + ns.x %}{% endfor %}"),
              HasSubstr("too many bytes"));
  EXPECT_THAT(Out("{{ 'a' * 9999999999 }}"), HasSubstr("too many bytes"));
  EXPECT_THAT(Out("{{ [1] * 999999999999 }}"), HasSubstr("too many bytes"));
  EXPECT_THAT(Out("{{ '%99999d' % 1 }}"), HasSubstr("width"));
  EXPECT_THAT(Out("{{ range(100001) }}"), HasSubstr("more than 100000"));
  EXPECT_THAT(Out("{% set ns = namespace(x=[]) %}{% for i in range(9999) %}"
                  "{% set ns.x = [ns.x] %}{% endfor %}"),
              HasSubstr("nested more than 128 deep"));
  EXPECT_THAT(Out("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}"),
              HasSubstr("nested too deep"));
  const auto small = Render("{% for i in range(99) %}abcdefgh{% endfor %}", {.output_bytes = 100});
  EXPECT_THAT(std::string(small.status().message()), HasSubstr("writes too many bytes"));
}

TEST(LimitsTest, RefusesSourcesThatNestWithoutEnd) {
  const auto repeated = [](const std::string& text, int times) {
    std::string all;
    for (int i = 0; i < times; ++i) all += text;
    return all;
  };
  EXPECT_THAT(Out("{{ " + repeated("(", 100'000) + "1" + repeated(")", 100'000) + " }}"),
              HasSubstr("100 deep"));
  EXPECT_THAT(Out("{{ " + repeated("[", 100'000) + repeated("]", 100'000) + " }}"),
              HasSubstr("100 deep"));
  EXPECT_THAT(Out("{{ " + repeated("not ", 200'000) + "1 }}"), HasSubstr("fewer operators"));
  EXPECT_THAT(Out("{{ " + repeated("-", 200'000) + "1 }}"), HasSubstr("fewer signs"));
  EXPECT_THAT(Out("{{ 1" + repeated(" + 1", 60'000) + " }}"), HasSubstr("200 deep"));
  EXPECT_THAT(Out("{{ x" + repeated(".x", 60'000) + " }}"), HasSubstr("200 deep"));
  EXPECT_THAT(Out(repeated("{% if x %}", 60'000)), HasSubstr("100 deep"));
  EXPECT_THAT(Out("{% if x %}" + repeated("{% elif x %}", 20'000)), HasSubstr("100 deep"));
  EXPECT_THAT(Out("{% set " + repeated("(", 60'000) + repeated(")", 60'000) + " %}"),
              HasSubstr("fewer brackets"));
  EXPECT_THAT(Out("{{ " + repeated("1 if 1 else ", 9'000) + " 1 }}"), HasSubstr("100 deep"));
}

}  // namespace
}  // namespace baton::jinja
