#include "common/kv/page_tree.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/random.h"

namespace baton {

PageTree::PageTree(int page_size) : page_size_(static_cast<size_t>(page_size)) {
  BATON_CHECK(page_size > 0) << "page_size " << page_size;
}

PageTree::Node PageTree::NodeOf(const std::string& salt, Node parent,
                                std::span<const int32_t> tokens) {
  Node node = Mix64(parent + 1);
  if (parent == 0) {
    for (const char byte : salt) node = Mix64(node ^ static_cast<unsigned char>(byte));
  }
  for (const int32_t token : tokens) node = Mix64(node ^ static_cast<uint32_t>(token));
  return std::max(node, Node{1});
}

PageTree::Node PageTree::Child(const std::string& salt, Node parent,
                               std::span<const int32_t> tokens) const {
  const auto found = nodes_.find(NodeOf(salt, parent, tokens));
  if (found == nodes_.end()) return 0;
  const Entry& entry = found->second;
  const bool same =
      entry.parent == parent && (parent != 0 || entry.salt == salt) &&
      std::equal(tokens.begin(), tokens.end(), entry.tokens.begin(), entry.tokens.end());
  return same ? found->first : 0;
}

PageTree::Match PageTree::Find(const std::string& salt, std::span<const int32_t> tokens,
                               int most) const {
  Match match;
  for (size_t begin = 0; begin + page_size_ <= tokens.size(); begin += page_size_) {
    if (static_cast<int>(match.pages.size()) >= most) break;
    const Node child = Child(salt, match.node, tokens.subspan(begin, page_size_));
    if (child == 0) break;
    match.node = child;
    match.pages.push_back(nodes_.at(child).page);
  }
  return match;
}

void PageTree::AddPins(Node node, Node until, int change) {
  for (Node at = node; at != until; at = nodes_.at(at).parent) {
    Entry& entry = nodes_.at(at);
    const bool was_free = entry.pins == 0;
    if (was_free && entry.children == 0) leaves_.erase({entry.used, at});
    entry.pins += change;
    BATON_CHECK(entry.pins >= 0) << "page " << entry.page << " is unpinned once more";
    const bool is_free = entry.pins == 0;
    evictable_ += (is_free ? 1 : 0) - (was_free ? 1 : 0);
    if (is_free && entry.children == 0) leaves_.emplace(entry.used, at);
  }
}

void PageTree::Pin(Node node) {
  if (node == 0) return;
  ++nodes_.at(node).holds;
  AddPins(node, 0, 1);
}

void PageTree::MovePin(Node from, Node to) {
  if (from == to) return;
  if (from != 0) --nodes_.at(from).holds;
  ++nodes_.at(to).holds;
  AddPins(to, from, 1);
}

void PageTree::Unpin(Node node) {
  if (node == 0) return;
  Entry& entry = nodes_.at(node);
  BATON_CHECK(entry.holds > 0) << "page " << entry.page << " is not pinned";
  --entry.holds;
  entry.used = ++clock_;  // Pinned, so it is in no list.
  AddPins(node, 0, -1);
}

void PageTree::Extend(const std::string& salt, std::span<const int32_t> tokens,
                      std::span<const int> owned, Prefix& prefix) {
  Node last = prefix.node;
  while (true) {
    const auto next = static_cast<size_t>(prefix.pages);
    if ((next + 1) * page_size_ > tokens.size()) break;
    const Node node =
        Insert(salt, last, tokens.subspan(next * page_size_, page_size_), owned[next]);
    if (node == 0) break;
    last = node;
    ++prefix.pages;
  }
  MovePin(prefix.node, last);
  prefix.node = last;
}

PageTree::Node PageTree::Insert(const std::string& salt, Node parent,
                                std::span<const int32_t> tokens, int page) {
  BATON_CHECK(tokens.size() == page_size_) << tokens.size() << " tokens in a page";
  const Node node = NodeOf(salt, parent, tokens);
  const auto [place, inserted] = nodes_.try_emplace(node);
  if (!inserted) return 0;
  if (parent != 0) {
    Entry& above = nodes_.at(parent);
    if (above.pins == 0 && above.children == 0) leaves_.erase({above.used, parent});
    ++above.children;
  }
  Entry& entry = place->second;
  entry.parent = parent;
  if (parent == 0) entry.salt = salt;
  entry.tokens.assign(tokens.begin(), tokens.end());
  entry.page = page;
  entry.used = ++clock_;
  leaves_.emplace(entry.used, node);
  ++evictable_;
  return node;
}

void PageTree::Remove(Node node) {
  const auto found = nodes_.find(node);
  const Entry entry = std::move(found->second);
  nodes_.erase(found);
  leaves_.erase({entry.used, node});
  --evictable_;
  if (entry.parent == 0) return;
  Entry& parent = nodes_.at(entry.parent);
  if (--parent.children > 0 || parent.pins > 0) return;
  // It was used whenever the page behind it was.
  parent.used = std::max(parent.used, entry.used);
  leaves_.emplace(parent.used, entry.parent);
}

std::vector<int> PageTree::Evict(int count) {
  std::vector<int> pages;
  while (static_cast<int>(pages.size()) < count && !leaves_.empty()) {
    const Node oldest = leaves_.begin()->second;
    pages.push_back(nodes_.at(oldest).page);
    Remove(oldest);
  }
  return pages;
}

int PageTree::PagesOfOnePin(Node node) const {
  int pages = 0;
  for (Node at = node; at != 0 && nodes_.at(at).pins == 1; at = nodes_.at(at).parent) ++pages;
  return pages;
}

int PageTree::EvictablePagesOf(Node node) const {
  int pages = 0;
  for (Node at = node; at != 0; at = nodes_.at(at).parent) {
    if (nodes_.at(at).pins > 0) break;  // Then those before it are, too.
    ++pages;
  }
  return pages;
}

int AvailablePages(const BlockPool& pool, const std::optional<PageTree>& tree) {
  return pool.free_pages() + (tree.has_value() ? tree->evictable_pages() : 0);
}

std::vector<int> TakePages(int count, BlockPool& pool, std::optional<PageTree>& tree,
                           uint64_t& evicted_total) {
  if (tree.has_value()) {
    const std::vector<int> evicted = tree->Evict(count - pool.free_pages());
    evicted_total += evicted.size();
    pool.Free(evicted);
  }
  std::optional<std::vector<int>> pages = pool.Allocate(count);
  BATON_CHECK(pages.has_value()) << count << " pages are taken, " << pool.free_pages()
                                 << " are free";
  return *std::move(pages);
}

}  // namespace baton
