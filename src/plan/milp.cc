#include "plan/milp.h"

#include <Cbc_C_Interface.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "base/error.h"

namespace trainer {
namespace {

// Bounds differ by rounding of this size, relative to the objective, at a proven optimum.
constexpr double kRounding = 1e-9;
// The solver's own idea of infinity.
constexpr double kSolverInfinity = 1e30;

struct ModelDeleter {
  void operator()(Cbc_Model* model) const { Cbc_deleteModel(model); }
};
using Model = std::unique_ptr<Cbc_Model, ModelDeleter>;

double clamp_infinity(double value) { return std::clamp(value, -kSolverInfinity, kSolverInfinity); }

// The solver takes columns, with each variable once per row.
void load(Cbc_Model* model, const Milp& program) {
  const size_t columns = program.variables.size(), rows = program.rows.size();
  std::vector<std::vector<std::pair<int, double>>> by_column(columns);
  std::vector<double> row_lower(rows), row_upper(rows);
  for (size_t r = 0; r < rows; ++r) {
    const MilpRow& row = program.rows[r];
    std::map<int, double> merged;
    for (const MilpTerm& term : row.terms) merged[term.variable] += term.coefficient;
    for (const auto& [variable, coefficient] : merged)
      if (coefficient != 0) by_column.at(static_cast<size_t>(variable)).push_back({r, coefficient});
    row_lower[r] = clamp_infinity(row.lower);
    row_upper[r] = clamp_infinity(row.upper);
  }
  std::vector<int> starts{0}, indices;
  std::vector<double> values, lower, upper, cost;
  for (size_t c = 0; c < columns; ++c) {
    for (const auto& [row, coefficient] : by_column[c]) {
      indices.push_back(row);
      values.push_back(coefficient);
    }
    starts.push_back(static_cast<int>(indices.size()));
    lower.push_back(clamp_infinity(program.variables[c].lower));
    upper.push_back(clamp_infinity(program.variables[c].upper));
    cost.push_back(program.variables[c].cost);
  }
  Cbc_loadProblem(model, static_cast<int>(columns), static_cast<int>(rows), starts.data(), indices.data(),
                  values.data(), lower.data(), upper.data(), cost.data(), row_lower.data(), row_upper.data());
  for (size_t c = 0; c < columns; ++c)
    if (program.variables[c].integer) Cbc_setInteger(model, static_cast<int>(c));
}

void set_options(Cbc_Model* model, const MilpOptions& options) {
  Cbc_setLogLevel(model, 0);
  Cbc_setParameter(model, "slogLevel", "0");
  Cbc_setParameter(model, "threads", "0");
  Cbc_setParameter(model, "randomCbcSeed", "1");
  Cbc_setParameter(model, "randomSeed", "1");
  Cbc_setParameter(model, "timeMode", "elapsed");
  Cbc_setMaximumSeconds(model, options.time_limit);
  Cbc_setAllowableFractionGap(model, options.relative_gap);
}

}  // namespace

const char* name_of(MilpStatus status) {
  static constexpr const char* kNames[] = {"optimal", "feasible", "infeasible", "no_solution"};
  return kNames[static_cast<size_t>(status)];
}

MilpSolution solve_milp(const Milp& program, const MilpOptions& options) {
  const Model model(Cbc_newModel());
  load(model.get(), program);
  set_options(model.get(), options);
  Cbc_solve(model.get());

  // A linear program without integers ends in the first solve, and only that solve's answer holds.
  const bool continuous = Cbc_getNumIntegers(model.get()) == 0;
  const bool infeasible = continuous ? Cbc_isInitialSolveProvenPrimalInfeasible(model.get())
                                     : Cbc_isProvenInfeasible(model.get());
  MilpSolution solution;
  if (infeasible) {
    solution.status = MilpStatus::kInfeasible;
    return solution;
  }
  if (Cbc_isContinuousUnbounded(model.get()) || (continuous && !Cbc_isInitialSolveProvenOptimal(model.get())))
    run_error("the linear program is unbounded, or the solver gave up on its numbers");
  if (Cbc_isAbandoned(model.get())) run_error("the solver gave up on the program's numbers");
  const double* values = continuous ? Cbc_getColSolution(model.get()) : Cbc_bestSolution(model.get());
  if (!values) return solution;
  for (size_t c = 0; c < program.variables.size(); ++c) {
    const MilpVariable& variable = program.variables[c];
    const double value = variable.integer ? std::round(values[c]) : values[c];
    solution.values.push_back(std::clamp(value, variable.lower, variable.upper));
    solution.objective += variable.cost * solution.values.back();
  }
  solution.best_bound = continuous ? solution.objective
                                   : std::min(Cbc_getBestPossibleObjValue(model.get()), solution.objective);
  const double distance = solution.objective - solution.best_bound;
  const double size = std::abs(solution.objective);
  if (distance <= kRounding * std::max(1.0, size)) {
    solution.status = MilpStatus::kOptimal;
    solution.best_bound = solution.objective;
  } else {
    solution.status = MilpStatus::kFeasible;
    solution.gap = size > 0 ? distance / size : kUnbounded;
  }
  return solution;
}

}  // namespace trainer
