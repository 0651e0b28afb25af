// Who asks for what, and when: the load of a run.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/content.h"
#include "tests/sim/scenario.h"

namespace baton::sim {
namespace {

struct Load {
  int requests = 0;
  int64_t from_us = kFaultsBeginUs;
  int64_t until_us = kFaultsEndUs;
  double long_prompts = 0.2;
  double too_long = 0.01;
  double leaves = 0.1;
  double aborts = 0.05;
  double duplicates = 0.04;
  double short_deadlines = 0.14;
  double choices = 0.06;
};

Load DrawLoad(Random& random, const Scenario& scenario) {
  Load load;
  if (scenario.weather == Weather::kOverload) {
    load.requests = static_cast<int>(random.Between(30, 60));
    load.until_us = load.from_us + random.Between(1000, random.Chance(0.6) ? 20'000 : 2 * kSecond);
    load.short_deadlines = 0;
    return load;
  }
  if (random.Chance(scenario.weather == Weather::kDrains ? 0.5 : 0.2)) {  // A burst.
    load.requests = static_cast<int>(random.Between(8, 24));
    load.from_us = random.Between(kFaultsBeginUs, 6 * kSecond);
    load.until_us = load.from_us + random.Between(1000, 200'000);
  } else {
    load.requests = static_cast<int>(random.Between(4, 24));
  }
  if (random.Chance(0.3)) {  // No client leaves early or sends an invalid request.
    load.too_long = load.leaves = load.aborts = load.duplicates = load.short_deadlines = 0;
  }
  if (random.Chance(scenario.weather == Weather::kSlowNetwork ? 0.5 : 0.1)) load.long_prompts = 0.7;
  return load;
}

// Around the edges of pages mostly, for there the mistakes are.
int DrawPromptTokens(Random& random, const Topology& topology, const Load& load) {
  const int page = topology.page_size;
  const int64_t longest =
      std::min<int64_t>(topology.max_context_tokens,
                        int64_t{page} * std::min(topology.prefill_pages, topology.decode_pages));
  if (random.Chance(load.too_long)) {
    return static_cast<int>(random.Between(longest, longest + 100));
  }
  if (random.Chance(load.long_prompts)) {
    return static_cast<int>(random.Between(1, longest * 3 / 4));
  }
  if (random.Chance(0.1)) return 1;
  if (random.Chance(0.4)) {
    const int64_t pages = random.Between(1, 6);
    return static_cast<int>(pages * page + random.Between(-1, 1));
  }
  return static_cast<int>(random.Between(1, int64_t{page} * 4));
}

int64_t DrawTimeAllowed(Random& random, const Scenario& scenario, const Load& load) {
  if (random.Chance(load.short_deadlines)) {
    if (random.Chance(0.1)) return 0;  // It has passed when the request arrives.
    return random.Between(1000, random.Chance(0.7) ? 30'000 : 200'000);
  }
  // In a calm run only a short deadline is an excuse.
  if (scenario.weather == Weather::kSlowNetwork) return 600 * kSecond;
  if (scenario.weather != Weather::kStorm) return random.Between(60, 120) * kSecond;
  return random.Between(3, 20) * kSecond;
}

Client DrawClient(Random& random, const Scenario& scenario, const Load& load) {
  const Topology& topology = scenario.topology;
  Client client;
  client.prompt_id = NewPromptId(random);
  client.prompt_tokens = DrawPromptTokens(random, topology, load);
  client.max_tokens = random.Chance(0.2)   ? 1
                      : random.Chance(0.1) ? static_cast<int>(random.Between(40, 200))
                                           : static_cast<int>(random.Between(1, 40));
  if (topology.grows_much && random.Chance(0.6)) {
    client.max_tokens =
        static_cast<int>(random.Between(topology.page_size, int64_t{6} * topology.page_size));
  }
  if (random.Chance(0.15)) client.stop_after = static_cast<int>(random.Between(1, 20));
  client.submit_us = random.Between(load.from_us, load.until_us);
  client.deadline_us = client.submit_us + DrawTimeAllowed(random, scenario, load);
  client.router = static_cast<int>(random.Below(static_cast<uint64_t>(topology.routers)));
  // Some at once, while the request is on its way to its first worker.
  const auto later = [&] {
    return client.submit_us + random.Between(0, random.Chance(0.5) ? 2000 : 400'000);
  };
  if (random.Chance(load.leaves)) client.leaves_us = later();
  if (random.Chance(load.aborts)) client.aborts_us = later();
  return client;
}

// The client's is the first of several choices (n > 1): requests of one prompt, sent at once.
void AddChoices(Random& random, Scenario& scenario, Client client) {
  const std::string id = client.request_id;
  client.group = static_cast<int>(scenario.clients.size()) - 1;
  scenario.clients.back().group = client.group;
  const int64_t more = random.Between(1, 3);
  for (int64_t i = 1; i <= more; ++i) {
    client.request_id = absl::StrCat(id, "-choice-", i);
    client.prompt_id = NewPromptId(random);  // Seeds differ, and with them all that follows.
    scenario.clients.push_back(client);
  }
}

}  // namespace

void DrawClients(Random& random, Scenario& scenario) {
  const Load load = DrawLoad(random, scenario);
  for (int i = 0; i < load.requests; ++i) {
    Client client = DrawClient(random, scenario, load);
    client.request_id = absl::StrCat("request-", i);
    if (i > 0 && random.Chance(load.duplicates)) {  // Duplicates a request that may still run.
      const Client& other = scenario.clients.back();
      client.request_id = other.request_id;
      client.router = other.router;  // Elsewhere it would be another request.
      client.submit_us = std::max(client.submit_us, other.submit_us);
      client.deadline_us = std::max(client.deadline_us, client.submit_us + 1000);
      client.leaves_us = kNeverUs;
    }
    scenario.clients.push_back(client);
    if (random.Chance(load.choices)) AddChoices(random, scenario, client);
  }
  // The same id twice at the same moment: one of the two must be refused.
  if (load.duplicates == 0 || !random.Chance(0.5)) return;
  for (int twin = 0; twin < 2; ++twin) {
    Client client;
    client.request_id = "twin";
    client.prompt_id = NewPromptId(random);
    client.prompt_tokens = scenario.topology.page_size * 2;
    client.max_tokens = 20;
    client.submit_us = 5 * kSecond + twin;
    client.deadline_us = 9 * kSecond;
    if (scenario.weather != Weather::kStorm) client.deadline_us += 600 * kSecond;
    scenario.clients.push_back(std::move(client));
  }
}

}  // namespace baton::sim
