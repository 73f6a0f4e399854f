// How many tasks a second the simulator runs on one core.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

#include "app/command.h"
#include "base/error.h"
#include "base/json.h"
#include "base/statistics.h"
#include "schedule/passes.h"
#include "sim/simulator.h"

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
  --json              one JSON object on standard output
)";

struct Arguments {
  int stages = 8, replicas = 1, blocks = 64, micro_batches = 128, steps = 4, repeats = 5;
  bool json = false;
};

int positive(const std::string& word, const std::string& text) {
  size_t end = 0;
  int value = 0;
  try {
    value = std::stoi(text, &end);
  } catch (const std::exception&) {
  }
  if (value < 1 || end != text.size())
    input_error("option '{}': expected an integer above 0, found '{}'", word, text);
  return value;
}

Arguments parse(const std::vector<std::string>& words) {
  Arguments a;
  const std::vector<std::pair<std::string, int*>> options = {
      {"--stages", &a.stages}, {"--replicas", &a.replicas}, {"--blocks", &a.blocks},
      {"--steps", &a.steps},   {"--repeats", &a.repeats},   {"--micro-batches", &a.micro_batches}};
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--json") {
      a.json = true;
      continue;
    }
    const auto it = std::find_if(options.begin(), options.end(),
                                 [&](const auto& option) { return option.first == words[i]; });
    if (it == options.end()) input_error("unknown option '{}'; --help lists them", words[i]);
    if (i + 1 == words.size()) input_error("option '{}' needs a value", words[i]);
    *it->second = positive(words[i], words[i + 1]);
    ++i;
  }
  return a;
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

void run(const std::vector<std::string>& words) {
  const Arguments arguments = parse(words);
  const Json r = measure(arguments);
  if (arguments.json) {
    fmt::print("{}\n", r.dump(2));
    return;
  }
  fmt::print("{} stages x {} replicas, {} layers, {} micro-batches: {} tasks a step, built in {:.3f} s\n",
             arguments.stages, arguments.replicas, arguments.blocks, arguments.micro_batches,
             r["tasks_per_step"].get<int64_t>(), r["build_seconds"].get<double>());
  fmt::print("{} steps in {:.4f} s: {:.2f} M tasks/s\n", arguments.steps, r["seconds"].get<double>(),
             r["tasks_per_second"].get<double>() / 1e6);
}

}  // namespace
}  // namespace trainer

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  return trainer::run_command({"simulate", trainer::kUsage, false, true}, words,
                              [&] { trainer::run(words); });
}
