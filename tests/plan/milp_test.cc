#include "plan/milp.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <random>

#include "base/error.h"

namespace trainer {
namespace {

// max value with weight <= capacity, as a minimisation.
Milp knapsack(const std::vector<int>& value, const std::vector<int>& weight, int capacity) {
  Milp program;
  MilpRow row;
  row.upper = capacity;
  for (size_t i = 0; i < value.size(); ++i)
    row.terms.push_back(
        {program.add_variable({0, 1, -static_cast<double>(value[i]), true}), static_cast<double>(weight[i])});
  program.rows.push_back(row);
  return program;
}

int best_value(const std::vector<int>& value, const std::vector<int>& weight, int capacity) {
  std::vector<int> best(static_cast<size_t>(capacity) + 1);
  for (size_t i = 0; i < value.size(); ++i)
    for (int room = capacity; room >= weight[i]; --room)
      best[static_cast<size_t>(room)] =
          std::max(best[static_cast<size_t>(room)], best[static_cast<size_t>(room - weight[i])] + value[i]);
  return best[static_cast<size_t>(capacity)];
}

TEST(Milp, KnapsacksEqualDynamicProgramming) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 40; ++round) {
    std::vector<int> value, weight;
    for (int i = 0; i < 12; ++i) {
      value.push_back(static_cast<int>(random() % 50) + 1);
      weight.push_back(static_cast<int>(random() % 20) + 1);
    }
    const MilpSolution solution = solve_milp(knapsack(value, weight, 50));
    ASSERT_EQ(solution.status, MilpStatus::kOptimal);
    EXPECT_EQ(-solution.objective, best_value(value, weight, 50));
    for (double x : solution.values) EXPECT_TRUE(x == 0 || x == 1);
  }
}

TEST(Milp, VariablesRepeatedInARowAreAdded) {
  Milp program;
  const int x = program.add_variable({0, 10, -1, false});
  program.rows.push_back({{{x, 1}, {x, 2}, {x, -1}}, -kUnbounded, 6});
  const MilpSolution solution = solve_milp(program);
  ASSERT_EQ(solution.status, MilpStatus::kOptimal);
  EXPECT_NEAR(solution.values[0], 3, 1e-9);
}

TEST(Milp, SaysThatThereIsNoSolution) {
  for (bool integer : {false, true}) {
    Milp program;
    const int x = program.add_variable({0, 10, 1, integer});
    program.rows.push_back({{{x, 2}}, 3, 3.5});
    program.rows.push_back({{{x, 1}}, 5, kUnbounded});
    EXPECT_EQ(solve_milp(program).status, MilpStatus::kInfeasible);
  }
  // Only the integrality makes it infeasible.
  Milp program;
  const int x = program.add_variable({0, 10, 1, true}), y = program.add_variable({0, 10, 1, true});
  program.rows.push_back({{{x, 2}, {y, 2}}, 3, 3});
  EXPECT_EQ(solve_milp(program).status, MilpStatus::kInfeasible);
}

TEST(Milp, RefusesAnUnboundedProgram) {
  Milp program;
  const int x = program.add_variable({0, kUnbounded, -1, false});
  program.rows.push_back({{{x, 1}}, 0, kUnbounded});
  EXPECT_THROW(solve_milp(program), RunError);
}

// A market split: hopeless to prove, so only the limit ends it.
Milp market_split() {
  std::mt19937_64 random(7);
  Milp program;
  std::vector<int> x;
  for (int i = 0; i < 50; ++i) x.push_back(program.add_variable({0, 1, 0, true}));
  for (int r = 0; r < 6; ++r) {
    MilpRow row;
    double sum = 0;
    for (int i : x) {
      row.terms.push_back({i, static_cast<double>(random() % 100)});
      sum += row.terms.back().coefficient;
    }
    row.terms.push_back({program.add_variable({0, kUnbounded, 1, false}), 1});
    row.terms.push_back({program.add_variable({0, kUnbounded, 1, false}), -1});
    row.lower = row.upper = std::floor(sum / 2);
    program.rows.push_back(row);
  }
  return program;
}

TEST(Milp, KeepsToTheTimeLimitAndReportsTheGap) {
  const auto begin = std::chrono::steady_clock::now();
  const MilpSolution solution = solve_milp(market_split(), {.time_limit = 1});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  ASSERT_EQ(solution.status, MilpStatus::kFeasible);
  EXPECT_GT(solution.gap, 0);
  EXPECT_NEAR(solution.gap, (solution.objective - solution.best_bound) / solution.objective, 1e-12);
}

TEST(Milp, SolvesSilentlyAndTheSameEveryTime) {
  std::vector<int> value, weight;
  for (int i = 0; i < 30; ++i) {
    value.push_back(13 + i * 7 % 11);
    weight.push_back(10 + i * 5 % 13);
  }
  std::fflush(stdout);
  FILE* capture = std::tmpfile();
  const int out = dup(1), err = dup(2);
  dup2(fileno(capture), 1);
  dup2(fileno(capture), 2);
  const MilpSolution first = solve_milp(knapsack(value, weight, 120));
  const MilpSolution second = solve_milp(knapsack(value, weight, 120));
  std::fflush(stdout);
  dup2(out, 1);
  dup2(err, 2);
  close(out);
  close(err);
  std::fseek(capture, 0, SEEK_END);
  EXPECT_EQ(std::ftell(capture), 0);
  std::fclose(capture);
  EXPECT_EQ(first.values, second.values);
  EXPECT_EQ(first.objective, second.objective);
}

}  // namespace
}  // namespace trainer
