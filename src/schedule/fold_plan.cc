#include "schedule/fold_plan.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace trainer {

FoldPlan plan_folds(int count) {
  FoldPlan plan;
  std::vector<std::pair<int, int>> stack;  // (buffer, leaves under it)
  std::vector<bool> taken;
  for (int v = 0; v < count; ++v) {
    const auto free = std::find(taken.begin(), taken.end(), false);
    const int leaf = static_cast<int>(free - taken.begin());
    if (free == taken.end())
      taken.push_back(true);
    else
      *free = true;
    plan.leaf.push_back(leaf);
    plan.folds.emplace_back();
    stack.emplace_back(leaf, 1);
    while (stack.size() >= 2 && stack.back().second == stack[stack.size() - 2].second) {
      const auto right = stack.back();
      stack.pop_back();
      plan.folds.back().push_back({stack.back().first, right.first});
      stack.back().second += right.second;
      taken[static_cast<size_t>(right.first)] = false;
    }
  }
  plan.buffers = static_cast<int>(taken.size());
  require(stack.size() == 1 && stack.front().first == 0, "virtual ranks must be a power of two");
  return plan;
}

}  // namespace trainer
