#include <gtest/gtest.h>

#include "common/grammar/testing/match_text.h"

namespace baton::grammar {
namespace {

TEST(RegexTest, MatchesTheWholeText) {
  const struct {
    const char* pattern;
    std::vector<const char*> texts;
    std::vector<const char*> others;
  } cases[] = {
      {"abc", {"abc"}, {"", "ab", "abcd"}},
      {"a|bc|", {"a", "bc", ""}, {"b", "abc"}},
      {"(ab)*c+", {"c", "ababcc"}, {"ab", "abac"}},
      {"[a-c]{2,3}", {"ab", "abc"}, {"a", "abca", "ad"}},
      {"x{3}", {"xxx"}, {"xx", "xxxx"}},
      {"x{2,}", {"xx", "xxxxxx"}, {"x"}},
      {"[^a]b?", {"x", "äb", "😀b"}, {"a", "bbb"}},
      {"\\d+\\.\\d{2}", {"3.14", "10.00"}, {"3.1", ".14"}},
      {"^ä.ö$", {"äxö", "äüö"}, {"äö", "ä\nö"}},
      {"(?:a|(?P<n>b))\\x41\\u00e4", {"aAä", "bAä"}, {"Aä"}},
      {"[\\w.-]+@[a-z]+", {"a.b-c@d"}, {"@d", "a@"}},
      {"a{,2}", {"a{,2}"}, {"a"}},
      {"([ab]{1,3}){2}", {"aa", "ababab"}, {"a", "abababa"}},
      {"(a*)*b", {"b", "aaab"}, {"a"}},
      {"(a?){3}", {"", "aaa"}, {"aaaa"}},
  };
  for (const auto& of : cases) {
    const Matcher matcher(Regex(of.pattern));
    ASSERT_EQ(matcher.error(), "") << of.pattern;
    for (const char* text : of.texts) EXPECT_TRUE(matcher.Matches(text)) << of.pattern << text;
    for (const char* text : of.others) EXPECT_FALSE(matcher.Matches(text)) << of.pattern << text;
  }
}

TEST(RegexTest, ErrorsSayWhere) {
  const std::pair<const char*, const char*> cases[] = {
      {"a(?=b)", "regex: position 3: looking ahead or behind, and flags, are not supported"},
      {"(a)\\1", "regex: position 4: \\1 is not supported"},
      {"a\\b", "regex: position 2: \\b is not supported"},
      {"(a", "regex: position 2: a group does not end"},
      {"a)", "regex: position 1: a ) that nothing opens"},
      {"[a", "regex: position 2: a class does not end"},
      {"*a", "regex: position 0: nothing stands before the count"},
      {"a**", "regex: position 3: a count of a count needs a group"},
      {"a{3,2}", "regex: position 5: the counts are in the wrong order"},
      {"a{99999}", "regex: position 7: a count of more than 65536"},
      {"a$b", "regex: position 2: $ is supported at the end alone"},
      {"(a$)", "regex: position 2: ^ and $ are supported at the ends alone"},
      {"[z-a]", "regex: position 4: the range of a class is malformed"},
      {"[^\\x00-\\u{10FFFF}]", "regex: no text can match it"},
      {"((a{1000}){1000}){1000}",
       "regex: the text: the counts within one another stand for more than 1048576 characters"},
      {"[^a]{65000}", "regex: is too large: it needs more than 65536 states or 524288 edges"},
  };
  for (const auto& [pattern, error] : cases) EXPECT_EQ(ErrorOf(Regex(pattern)), error);
  EXPECT_EQ(ErrorOf(Regex(std::string(300 << 10, 'a'))),
            "regex: has 307200 bytes, more than the 262144 accepted");
  EXPECT_EQ(ErrorOf(Regex("(a?){1020}")),
            "regex: is too ambiguous: it may go on in more than 1000 ways");
  EXPECT_EQ(ErrorOf(Regex("a\xff")), "regex: ill-formed UTF-8 at byte 1");
  EXPECT_EQ(ErrorOf(Regex(std::string(70, '(') + std::string(70, ')'))),
            "regex: position 65: the groups are nested too deep");
}

TEST(EbnfTest, Matches) {
  const Matcher sql(Ebnf(R"(
# A comment.
root   ::= "SELECT " column (", " column)* where?
where  ::= " WHERE " column " = "
           [0-9]{1,3} | '!' .
column ::= [a-z_]+ | "\x41\u00e4\n"
)"));
  ASSERT_EQ(sql.error(), "");
  EXPECT_TRUE(sql.Matches("SELECT a, b_c WHERE d = 12"));
  EXPECT_TRUE(sql.Matches("SELECT a!ö"));
  EXPECT_TRUE(sql.Matches("SELECT Aä\n"));
  EXPECT_FALSE(sql.Matches("SELECT a WHERE d = 1234"));
  EXPECT_FALSE(sql.Matches("SELECT "));
}

TEST(EbnfTest, RulesMayCallThemselves) {
  const Matcher nested(Ebnf("root ::= \"(\" root \")\" | \"x\"\n"));
  EXPECT_TRUE(nested.Matches("(((x)))"));
  EXPECT_FALSE(nested.Matches("(((x))"));
  const Matcher list(Ebnf("root ::= item root | item\nitem ::= [ab]"));
  EXPECT_TRUE(list.Matches(std::string(10'000, 'a')));
  EXPECT_FALSE(list.Matches("abc"));
  const Matcher empty(Ebnf("root ::= a* \"x\"\na ::= \"b\"? \"c\"?"));
  EXPECT_TRUE(empty.Matches("bcbccx"));
}

TEST(EbnfTest, Extensions) {
  const Matcher call(Ebnf(R"(root ::= %special "<call>" %json {"type": "integer"} "}" )"));
  EXPECT_TRUE(call.Matches("<call>12}"));
  EXPECT_TRUE(call.Matches(SpecialBytes("<call>") + "12}"));
  EXPECT_FALSE(call.Matches("<call>x}"));
  const Matcher until(Ebnf(R"(root ::= %until "aab" "!")"));
  EXPECT_TRUE(until.Matches("aab!"));
  EXPECT_TRUE(until.Matches("xaaab!"));
  EXPECT_TRUE(until.Matches("ababaäaab!"));
  EXPECT_FALSE(until.Matches("aab aab!"));
  EXPECT_FALSE(until.Matches("aa!"));
  const Matcher without(Ebnf(R"(root ::= (%until "aab" "!")* %without "aab")"));
  EXPECT_TRUE(without.Matches(""));
  EXPECT_TRUE(without.Matches("aa ab"));
  EXPECT_TRUE(without.Matches("x aab!aaab!b"));
  EXPECT_FALSE(without.Matches("aaab"));
}

TEST(EbnfTest, ErrorsSayWhere) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "ebnf: there is no rule called root"},
      {"a ::= \"x\"", "ebnf: there is no rule called root"},
      {"root ::= b", "ebnf: line 1, column 10: no rule is called b"},
      {"root ::= \"x\n", "ebnf: line 2, column 1: the text ends in a quote or class"},
      {"root = a", "ebnf: line 1, column 6: expected ::= behind the name of a rule"},
      {"root ::= (\"a\"", "ebnf: line 1, column 14: a group does not end"},
      {"root ::= \"a\"\nroot ::= \"b\"", "ebnf: line 2, column 1: another rule has this name, too"},
      {"root ::= root \"a\" | \"b\"",
       "ebnf: the rule root refers to itself before any text (left recursion)"},
      {"root ::= \"a\" root", "ebnf: no text can match it"},
      {"root ::= \"a\"***", "ebnf: line 1, column 15: a count of a count needs a group"},
      {"root ::= %lark \"a\"",
       "ebnf: line 1, column 16: expected %json, %keywords, %arg_tags, %parameter_tags, %special, "
       "%until or %without"},
      {"root ::= %json {\"type\": \"text\"}",
       "ebnf: line 1, column 16: %json: type: must be a type's name or a list of such: null, "
       "boolean, integer, number, string, array, object"},
      {"root ::= \"\\q\"", "ebnf: line 1, column 12: this escape is not known"},
  };
  for (const auto& [text, error] : cases) EXPECT_EQ(ErrorOf(Ebnf(text)), error);
  EXPECT_EQ(ErrorOf(Ebnf("root ::= a\na ::= b? c\nb ::= \"b\"\nc ::= a \"x\" | \"y\"")),
            "ebnf: the rule c refers to itself before any text (left recursion)");
}

TEST(ChoiceTest, OneOfTheTexts) {
  const Matcher matcher({.kind = Source::Kind::kChoice, .choices = {"yes", "no", "nö", ""}});
  EXPECT_TRUE(matcher.Matches("yes"));
  EXPECT_TRUE(matcher.Matches("nö"));
  EXPECT_TRUE(matcher.Matches(""));
  EXPECT_FALSE(matcher.Matches("ye"));
  EXPECT_EQ(ErrorOf({.kind = Source::Kind::kChoice}), "choice: must be 1 to 4096 texts, are 0");
}

TEST(ReasoningTest, MayStandBefore) {
  Source source = Regex("[0-9]");
  source.reasoning_begin = "<think>";
  source.reasoning_end = "</think>";
  EXPECT_TRUE(Matches(source, "1"));
  EXPECT_TRUE(Matches(source, "<think>a < b</think>\n\n1"));
  EXPECT_FALSE(Matches(source, "a</think>1"));
  source.in_reasoning = true;
  EXPECT_TRUE(Matches(source, "a</think>1"));
  EXPECT_FALSE(Matches(source, "1"));
}

TEST(ReasoningTest, MayBeCutShort) {
  Source source = Regex("[0-9]");
  source.reasoning_begin = "<think>";
  source.reasoning_end = "</think>";
  const auto closes = [&](std::string_view text) {
    return Matcher(CompileClosing(source)).Matches(text);
  };
  EXPECT_TRUE(closes("</think>\n1"));
  EXPECT_TRUE(closes(SpecialBytes("</think>") + "1"));
  EXPECT_FALSE(closes("a</think>1"));
  EXPECT_FALSE(closes("1"));
  source = {.kind = Source::Kind::kAnything, .reasoning_begin = "a", .reasoning_end = "b"};
  EXPECT_TRUE(closes("b"));
  EXPECT_FALSE(Compile(source).ok());
  source.reasoning_end = "";
  EXPECT_FALSE(CompileClosing(source).ok());
}

}  // namespace
}  // namespace baton::grammar
