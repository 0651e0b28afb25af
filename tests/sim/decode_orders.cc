#include "tests/sim/decode_orders.h"

#include <utility>
#include <variant>

#include "tests/sim/content.h"

namespace baton::sim {
namespace {

void Spoil(Random& random, const Topology& topology, int node, const OrderContext& context,
           decode::GrantOrder& order) {
  const int pages = topology.PagesOf(node);
  LayerRange& layers = order.writers.back().layers;
  const auto taken = context.grants.begin();
  switch (random.Below(14)) {
    case 11:
      if (taken == context.grants.end()) order.generation = context.newest_generation;
      if (taken != context.grants.end()) order.slot = taken->second.slot;
      return;
    case 12:
      if (taken == context.grants.end()) order.generation = context.newest_generation;
      if (taken != context.grants.end()) order.pages.back() = taken->second.pages.back();
      return;
    case 13:
      layers.begin = layers.end + 1;
      return;
    case 0:
      order.slot = static_cast<uint32_t>(topology.max_running);
      return;
    case 1:
      order.generation = context.newest_generation;
      return;
    case 2:
      order.prompt_pages = 0;
      return;
    case 3:
      order.prompt_pages = static_cast<int>(order.pages.size()) + 1;
      return;
    case 4:
      order.pages.back() = pages;
      return;
    case 5:
      order.pages.back() = -1;
      return;
    case 6:
      order.pages.push_back(order.pages.front());
      return;
    case 7:
      layers.begin = -1;
      return;
    case 8:
      layers.end = layers.begin;
      return;
    case 9:
      order.pages.clear();
      return;
    default:
      layers.end = topology.layers + 1;
  }
}

void Spoil(Random& random, const Topology& topology, int /*node*/, const OrderContext& /*context*/,
           decode::RevokeOrder& order) {
  switch (random.Below(3)) {
    case 0:
      ++order.generation;
      return;
    case 1:
      order.slot = static_cast<uint32_t>(topology.max_running);
      return;
    default:
      ++order.slot;
  }
}

void Spoil(Random& random, const Topology& topology, int node, const OrderContext& context,
           decode::StepOrder& order) {
  decode::StepOrder::Row& row = order.rows[random.Below(order.rows.size())];
  const auto grant = context.grants.find(row.generation);
  switch (random.Below(13)) {
    case 11:
      row.new_page = topology.PagesOf(node);
      return;
    case 12:
      row.new_page =
          grant == context.grants.end() ? topology.PagesOf(node) : grant->second.pages.front();
      return;
    case 0:
      if (!context.stepped) row.position = -1;  // The first of an epoch may have any number.
      ++order.step;
      return;
    case 1:
      if (!context.stepped) row.token = -1;
      --order.step;
      return;
    case 2:
      order.rows.clear();
      return;
    case 3: {
      const decode::StepOrder::Row twice = row;
      order.rows.push_back(twice);
      return;
    }
    case 4:
      ++row.generation;
      return;
    case 5:
      row.slot = static_cast<uint32_t>(topology.max_running);
      return;
    case 6:
      row.position = topology.max_context_tokens;
      return;
    case 7:
      row.position = -1;
      return;
    case 8:
      row.token = kVocabulary;
      return;
    case 9:
      row.token = -1;
      return;
    default:
      row.position = grant == context.grants.end()
                         ? -1
                         : static_cast<int>(grant->second.pages.size()) * topology.page_size + 1;
  }
}

}  // namespace

decode::Order OrderOf(const decode::GrantKv& grant) {
  decode::GrantOrder order;
  order.slot = grant.grant.slot;
  order.generation = grant.grant.generation;
  order.prompt_pages = static_cast<int>(grant.grant.pages.size());
  order.pages = grant.grant.pages;
  order.pages.insert(order.pages.end(), grant.continuation.begin(), grant.continuation.end());
  order.writers = grant.grant.writers;
  return order;
}

decode::Order OrderOf(const decode::RevokeKv& revoke) {
  return decode::RevokeOrder{revoke.slot, revoke.generation};
}

decode::Order OrderOf(const decode::RunStep& step) {
  decode::StepOrder order{step.step, {}};
  for (const decode::RunStep::Sequence& sequence : step.sequences) {
    order.rows.push_back(
        {sequence.slot, sequence.generation, sequence.token, sequence.position, sequence.new_page});
  }
  return order;
}

void OrderContext::Saw(const decode::Order& order) {
  if (const auto* grant = std::get_if<decode::GrantOrder>(&order)) {
    newest_generation = grant->generation;
    grants[grant->generation] = {grant->slot, grant->pages};
  } else if (const auto* revoke = std::get_if<decode::RevokeOrder>(&order)) {
    grants.erase(revoke->generation);
  } else {
    stepped = true;
    for (const decode::StepOrder::Row& row : std::get<decode::StepOrder>(order).rows) {
      if (row.new_page >= 0) grants.at(row.generation).pages.push_back(row.new_page);
    }
  }
}

decode::Order Garble(Random& random, const Topology& topology, int node,
                     const OrderContext& context, decode::Order order) {
  std::visit([&](auto& o) { Spoil(random, topology, node, context, o); }, order);
  return order;
}

}  // namespace baton::sim
