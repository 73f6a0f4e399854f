// How many tasks a second the simulator runs on one core.
#include <fmt/core.h>

#include <ctime>
#include <string>
#include <vector>

#include "app/options.h"
#include "base/json.h"
#include "base/statistics.h"
#include "schedule/passes.h"
#include "sim/simulator.h"
#include "support/program.h"

namespace trainer {
namespace {

constexpr const char* kUsage = R"(usage: simulate [options]

Simulates training steps of an invented model and prints tasks per second, the median of the repeats. The graph
is built before the clock starts; the clock counts processor time.

  --stages P          (default 8)
  --replicas D        all of them are simulated (default 1)
  --blocks N          transformer layers (default 64)
  --micro-batches M   (default 128)
  --steps N           (default 4)
  --repeats N         (default 5)
  --quick             a tiny model, to see whether it works
  --json              one JSON object on standard output
)";

struct Arguments {
  int stages = 0, replicas = 0, blocks = 0, micro_batches = 0, steps = 0, repeats = 0;
};

Arguments parse(const Words& words) {
  const Options options(
      words, {"--stages", "--replicas", "--blocks", "--micro-batches", "--steps", "--repeats"}, {"--quick"});
  const bool quick = options.has("--quick");
  const auto number = [&](const char* name, int64_t fallback, int64_t when_quick) {
    return static_cast<int>(options.integer(name, quick ? when_quick : fallback, 1, 1 << 20));
  };
  return {.stages = number("--stages", 8, 2),
          .replicas = number("--replicas", 1, 1),
          .blocks = number("--blocks", 64, 4),
          .micro_batches = number("--micro-batches", 128, 4),
          .steps = number("--steps", 4, 2),
          .repeats = number("--repeats", 5, 2)};
}

Problem invented_problem(const Arguments& a) {
  Problem p;
  p.stages = a.stages;
  p.replicas = a.replicas;
  p.micro_batches = a.micro_batches;
  for (int l = 0; l < a.blocks + 2; ++l) {
    LayerCatalogue c;
    c.name = l == 0 ? "embedding" : l == a.blocks + 1 ? "head" : "block " + std::to_string(l);
    c.parameters = 1 << 20;
    c.output_bytes = c.gradient_bytes = 1 << 16;
    if (l > 0) c.saved = {{"attention", 1 << 16, 0, ReuseClass::kBackward}};
    p.layers.push_back(c);
  }
  p.first_layer = first_layers(even_stage_layers(a.blocks, a.stages));
  return p;
}

// Of this process, on whatever core, so that other work on the machine does not count.
double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

Json measure(const Arguments& a) {
  double begin = processor_seconds();
  const StepGraph graph = build_step_graph(invented_problem(a));
  const double build_seconds = processor_seconds() - begin;
  CostTable costs;
  for (const Task& task : graph.tasks)
    costs.seconds.push_back(task.kind == TaskKind::kBackward ? 2 : task.kind == TaskKind::kForward ? 1 : 0.1);
  std::vector<double> times;
  for (int repeat = 0; repeat < a.repeats; ++repeat) {
    begin = processor_seconds();
    simulate(graph, costs, a.steps);
    times.push_back(processor_seconds() - begin);
  }
  const double seconds = median(times);
  const auto tasks = static_cast<int64_t>(graph.tasks.size()) * a.steps;
  Json result;
  result["benchmark"] = "simulate";
  result["stages"] = a.stages;
  result["replicas"] = a.replicas;
  result["blocks"] = a.blocks;
  result["micro_batches"] = a.micro_batches;
  result["steps"] = a.steps;
  result["tasks_per_step"] = graph.tasks.size();
  result["build_seconds"] = build_seconds;
  result["seconds"] = seconds;
  result["repeats"] = times;
  result["tasks_per_second"] = static_cast<double>(tasks) / seconds;
  return result;
}

void print(const Json& r) {
  const auto number = [&](const char* key) { return r[key].get<int64_t>(); };
  fmt::print("{} stages x {} replicas, {} layers, {} micro-batches: {} tasks a step, built in {:.3f} s\n",
             number("stages"), number("replicas"), number("blocks"), number("micro_batches"),
             number("tasks_per_step"), r["build_seconds"].get<double>());
  fmt::print("{} steps in {:.4f} s: {:.2f} M tasks/s\n", number("steps"), r["seconds"].get<double>(),
             r["tasks_per_second"].get<double>() / 1e6);
}

}  // namespace
}  // namespace trainer

int main(int argc, char** argv) {
  using namespace trainer;
  return run_program({"simulate", kUsage}, argc, argv, [](const Words& words) {
    return Report{measure(parse(words)), print};
  });
}
