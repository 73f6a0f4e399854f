// Mixed-integer linear programs as data, and the one function behind which the solver sits. Nothing else
// knows which solver that is.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace trainer {

inline constexpr double kUnbounded = std::numeric_limits<double>::infinity();

struct MilpVariable {
  double lower = 0, upper = kUnbounded;
  double cost = 0;  // coefficient in the objective, which is minimised
  bool integer = false;
};

struct MilpTerm {
  int variable = 0;
  double coefficient = 0;
};

// lower <= sum of terms <= upper. A variable may appear more than once: its coefficients are added.
struct MilpRow {
  std::vector<MilpTerm> terms;
  double lower = -kUnbounded, upper = kUnbounded;
};

struct Milp {
  std::vector<MilpVariable> variables;
  std::vector<MilpRow> rows;

  int add_variable(MilpVariable variable) {
    variables.push_back(variable);
    return static_cast<int>(variables.size()) - 1;
  }
};

struct MilpOptions {
  double time_limit = 10;   // seconds of wall time
  double relative_gap = 0;  // stop at (objective - bound) / |objective| <= this
};

enum class MilpStatus : uint8_t {
  kOptimal,     // within rounding of the best bound
  kFeasible,    // stopped at the allowed gap or the time limit; `gap` says how far from the bound
  kInfeasible,  // there is no solution
  kNoSolution   // the time limit came before the first solution
};
const char* name_of(MilpStatus status);

struct MilpSolution {
  MilpStatus status = MilpStatus::kNoSolution;
  std::vector<double> values;  // [variables]; empty without a solution; exact integers where integer
  double objective = 0, best_bound = 0;
  double gap = 0;  // (objective - best_bound) / |objective|, 0 when optimal

  bool has_solution() const { return status == MilpStatus::kOptimal || status == MilpStatus::kFeasible; }
};

// Solves on one thread with a fixed seed and prints nothing: equal input gives an equal answer unless the
// time limit ends the search. Throws RunError when the program is unbounded or the solver gives up on its
// numbers.
MilpSolution solve_milp(const Milp& program, const MilpOptions& options = {});

}  // namespace trainer
