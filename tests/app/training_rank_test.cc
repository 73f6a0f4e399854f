#include "app/training_rank.h"

#include <gmock/gmock.h>

#include <numeric>

#include "base/error.h"
#include "support/tiny_grid.h"

namespace trainer {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Attempt {
  std::vector<std::string> refusals;  // by rank; empty: none
  std::vector<int64_t> needs;         // bytes of the arenas, by rank
};

Attempt set_up(const testing::GridPlan& plan) {
  const auto world = static_cast<size_t>(plan.world());
  auto communicators = make_in_process_group(plan.world(), plan.network);
  Attempt result{std::vector<std::string>(world), std::vector<int64_t>(world)};
  std::vector<std::jthread> threads;
  for (size_t r = 0; r < world; ++r)
    threads.emplace_back([&, r] {
      try {
        const TrainingRank rank(testing::grid_config(plan), plan.model, make_host_kernels(1),
                                *communicators[r], testing::grid_data(plan), nullptr);
        const TierBytes tiers = rank.memory_plan().tiers;
        result.needs[r] = std::accumulate(tiers.begin(), tiers.end(), int64_t{0});
      } catch (const InputError& error) {
        result.refusals[r] = error.what();
      } catch (const std::exception& error) {
        communicators[r]->abort(error.what());
      }
    });
  threads.clear();
  return result;
}

TEST(TrainingRank, AllRanksRefuseAPlanThatOneOfThemCannotHold) {
  testing::GridPlan plan;
  plan.stages = 2;
  const Attempt unlimited = set_up(plan);
  EXPECT_THAT(unlimited.refusals, Each(IsEmpty()));
  const auto [least, most] = std::minmax_element(unlimited.needs.begin(), unlimited.needs.end());
  ASSERT_LT(*least + 1, *most);
  plan.memory_budget = *least + 1;
  EXPECT_THAT(set_up(plan).refusals, Each(HasSubstr("the memory budget is")));
  plan.memory_budget = *most;
  EXPECT_THAT(set_up(plan).refusals, Each(IsEmpty()));
}

}  // namespace
}  // namespace trainer
