#include "common/grammar/grammar_size.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace baton::grammar {
namespace {

using NodeId = Grammar::NodeId;
using Node = Grammar::Node;

constexpr size_t kTooBig = size_t{1} << 40;
constexpr int kMaxCallDepth = 16;
// States as a tree of counts would have them if each body stood there as often as it may.
constexpr uint64_t kMaxExpanded = 1 << 20;

bool IsAscii(const Node& node) { return node.ranges.empty() || node.ranges.back().high < 0x80; }

}  // namespace

absl::Status GrammarSize::CheckCounts() const {
  for (const Grammar::Rule& rule : grammar_.rules()) {
    if (rule.body < 0) continue;
    if (Expanded(rule.body) <= kMaxExpanded) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(rule.name, ": the counts within one another stand for more than ",
                     kMaxExpanded, " characters"));
  }
  return absl::OkStatus();
}

// The states of a node without the rules that it calls.
uint64_t GrammarSize::Expanded(NodeId id) const {
  const Node& node = grammar_.node(id);
  uint64_t sum = node.kind == Grammar::Kind::kText ? node.text.size() : 1;
  for (const NodeId child : node.children) sum += Expanded(child);
  if (node.kind == Grammar::Kind::kRepeat) {
    sum *= static_cast<uint64_t>(std::max({node.least, node.most, 1}));
  }
  return std::min(sum, 2 * kMaxExpanded);
}

size_t GrammarSize::OfRule(int rule, int depth) {
  if (depth > kMaxCallDepth) return kTooBig;
  const auto at = static_cast<size_t>(rule);
  if (rules_[at] != kUnknown) return rules_[at];
  rules_[at] = kTooBig;  // Where it calls itself.
  const NodeId body = grammar_.rules()[at].body;
  const size_t size = body < 0 ? 0 : OfNode(body, depth + 1);
  rules_[at] = size;
  return size;
}

size_t GrammarSize::OfNode(NodeId id, int depth) {
  const Node& node = grammar_.node(id);
  switch (node.kind) {
    case Grammar::Kind::kText:
      return node.text.size();
    case Grammar::Kind::kChars:
      return node.escapes != Escapes::kNone ? 10 : IsAscii(node) ? 1 : 8;
    case Grammar::Kind::kRule:
      return OfRule(node.rule, depth);
    default:
      break;
  }
  size_t sum = 1;
  for (const NodeId child : node.children) sum += OfNode(child, depth);
  if (node.kind == Grammar::Kind::kRepeat) {
    sum *= static_cast<size_t>(
        std::max({node.least + (node.most == kUnbounded ? 1 : 0), node.most, 1}));
  }
  return std::min(sum, kTooBig);
}

}  // namespace baton::grammar
