// How fast a training step is, next to the rates of matrix products and memory measured in the same run.
#include <fmt/core.h>

#include <numeric>
#include <optional>

#include "app/training_rank.h"
#include "base/statistics.h"
#include "base/units.h"
#include "device/arena.h"
#include "train_step/arguments.h"
#include "train_step/breakdown.h"
#include "train_step/ceilings.h"
#include "train_step/grid.h"

namespace trainer {
namespace {

constexpr const char* kUsage = R"(usage: train_step --model MODEL [options]

Times training steps (forward, backward, clipping, optimizer) on random tokens.

  --model MODEL            gpt2-124m (with as many positions as a longer sequence needs), llama-110m, qwen2.5-0.5b, a
                           config of trainer or a Hugging Face config.json
  --precision bf16|fp32    (default bf16)
  --sequence N             tokens of a sequence (default 1024)
  --sequences-per-step N   (default 8)
  --micro-batch N          sequences at a time (default 1)
  --backend NAME           host (default), cuda, or simt: the kernels of cuda simulated on the host, for tiny models, to see
                           whether they work; times then mean nothing
  --threads N              of the host (default: all cores)
  --steps N                timed steps, at least 3 (default 3); one more comes before them and is not counted
  --ranks P                on the host also a pipeline of P stages of one thread, each bound to a core of its own, in turn
                           with one rank of P threads
  --json                   one JSON object on standard output

The step time is the median. The rates of matrix products, on the step's own shapes, and of memory, on arrays beyond the
caches, are measured before, between and after the timed steps; each counts with the median of these rounds, and the
ceiling of products is the best shape. Model FLOPs count causal attention half and no recomputation. The roofline is the
time that a step needs at best: its products at that ceiling, then the bytes of everything else, read and written once,
at memory's. Times by kernel are means over the timed steps, without cuda, whose kernels return before they are done.
Peak memory of the host is read after the first step.
)";

// The time that a step needs at best: products at the rate of the best one, then all other bytes at memory's.
void add_roofline(Json& r, const KernelRecord& record, const MachineRates& rates,
                  const TrainStepArguments& a) {
  KernelWork necessary = necessary_work(record);
  necessary.flops /= a.steps;
  necessary.bytes /= a.steps;
  const double seconds = rates.seconds(necessary);
  r["memory_bytes_per_second"] = rates.memory;
  r["roofline_flops"] = necessary.flops;
  r["roofline_bytes"] = necessary.bytes;
  r["roofline_seconds"] = seconds;
  r["roofline_ratio"] = seconds / r["step_seconds"].get<double>();
  // A GPU's kernels return before their work is done.
  if (a.backend != "cuda") r["kernels"] = kernel_breakdown(record, rates, a.steps, a.ranks);
}

Json measure(const TrainStepArguments& a) {
  // The pipeline first, so that the peak is that of its ranks alone.
  std::optional<Grid> pipeline, single;
  const bool host = a.backend == "host";
  int64_t predicted = 0;
  if (a.ranks > 1) predicted = pipeline.emplace(a.backend, a.config, a.model, a.ranks, 1).start();
  if (a.ranks == 1) predicted = single.emplace(a.backend, a.config, a.model, 1, a.threads).start();
  const int64_t peak = resident_memory().peak;
  if (a.ranks > 1) single.emplace(a.backend, a.config, a.model, 1, a.threads).start();

  Ceilings ceilings(a);
  std::vector<double> single_seconds, pipeline_seconds;
  ceilings.measure();
  for (int s = 0; s < a.steps; ++s) {
    single_seconds.push_back(single->step());
    if (pipeline) pipeline_seconds.push_back(pipeline->step());
    ceilings.measure();
  }

  Grid& subject = pipeline ? *pipeline : *single;
  const auto tokens = static_cast<double>(a.step_tokens());
  const double flops = subject.model().flops_per_token(a.config.data.sequence_length);
  const double seconds = median(pipeline ? pipeline_seconds : single_seconds);
  const MachineRates rates{ceilings.products(), ceilings.memory()};
  Json r;
  r["command"] = a.command;
  r["backend"] = a.backend;
  r["device"] = ceilings.device().name();
  r["machine"] = ceilings.machine();
  if (a.backend == "simt") r["simulated"] = true;
  r["plan"] = subject.describe();
  r["parameters"] = subject.model().parameter_count();
  r["threads"] = a.threads;
  r["step_seconds"] = seconds;
  r["all_step_seconds"] = pipeline ? pipeline_seconds : single_seconds;
  r["tokens_per_second"] = tokens / seconds;
  r["model_flops_per_token"] = flops;
  r["model_flops_per_second"] = flops * tokens / seconds;
  r["gemm_flops_per_second"] = rates.products;
  r["gemm_in_turn_flops_per_second"] = ceilings.products_in_turn();
  r["ratio"] = flops * tokens / seconds / rates.products;
  r["gemm_shapes"] = ceilings.products_by_shape();
  add_roofline(r, subject.kernels(), rates, a);
  if (host) r["peak_memory_bytes"] = peak;
  r["predicted_memory_bytes"] = predicted;
  const auto events = subject.take_events();
  r["tasks"] = task_breakdown(events, subject.model().layer_count(), a.steps);
  if (!pipeline) r["overhead"] = program_overhead(events.front(), subject.other_seconds(), a.steps);
  if (pipeline) {
    const double micro_batches =
        static_cast<double>(a.config.training.global_batch_size / a.config.training.micro_batch_size);
    const double no_bubble = micro_batches / (micro_batches + a.ranks - 1);
    const double ideal = ideal_pipeline(events, micro_batches);
    const double one_rank = tokens / median(single_seconds), ratio = tokens / seconds / one_rank;
    r["pipeline"] = {{"ranks", a.ranks},
                     {"micro_batches", micro_batches},
                     {"single_rank_tokens_per_second", one_rank},
                     {"ideal_ratio", ideal},
                     {"ratio_to_single_rank", ratio},
                     {"ratio_to_single_rank_without_bubble", ratio / no_bubble},
                     {"ratio_to_ideal", ratio / ideal}};
  }
  return r;
}

// Beside the mean step, as the kernels' seconds are means.
void print_kernels(const Json& r) {
  const auto steps = r["all_step_seconds"].get<std::vector<double>>();
  const double step = std::accumulate(steps.begin(), steps.end(), 0.0) / static_cast<double>(steps.size());
  fmt::print("\nkernels of a step, mean seconds of a rank, ratio to the ceiling of each\n");
  fmt::print("  {:<24} {:>7} {:>9} {:>8} {:>10} {:>9} {:>8}\n", "", "calls", "seconds", "", "GFLOP", "GB",
             "ratio");
  double rest = step;
  for (const Json& k : r["kernels"]) {
    const double seconds = k["seconds"].get<double>(), flops = k["flops"].get<double>();
    rest -= seconds;
    fmt::print("  {:<24} {:>7} {:>9.4f} {:>6.1f} % {:>10} {:>9.3f} {:>6.1f} %\n",
               k["kernel"].get<std::string>(), k["calls"].get<int64_t>(), seconds, 100 * seconds / step,
               flops > 0 ? fmt::format("{:.2f}", flops / 1e9) : "", k["bytes"].get<double>() / 1e9,
               100 * k["ratio"].get<double>());
  }
  fmt::print("  {:<24} {:>7} {:>9.4f} {:>6.1f} %\n", "outside kernels", "", rest, 100 * rest / step);
}

void print(const Json& r) {
  const auto number = [&](const char* key) { return r[key].get<double>(); };
  fmt::print("{}\n{}\n{}\n\n", r["command"].get<std::string>(), r["machine"].get<std::string>(),
             r["plan"].get<std::string>());
  fmt::print("step            {:.3f} s (median of {})\n", number("step_seconds"),
             r["all_step_seconds"].size());
  fmt::print("tokens          {:.1f} /s\n", number("tokens_per_second"));
  fmt::print("model           {:.1f} GFLOP/s\n", number("model_flops_per_second") / 1e9);
  fmt::print("matrix products {:.1f} GFLOP/s, best of\n", number("gemm_flops_per_second") / 1e9);
  for (const Json& s : r["gemm_shapes"])
    fmt::print("  {:>6} x {:>6} x {:>6}  {:.1f} GFLOP/s\n", s["m"].get<int64_t>(), s["n"].get<int64_t>(),
               s["k"].get<int64_t>(), s["flops_per_second"].get<double>() / 1e9);
  fmt::print("  in turn, alone            {:.1f} GFLOP/s, {:.1f} % of the best\n",
             number("gemm_in_turn_flops_per_second") / 1e9,
             100 * number("gemm_in_turn_flops_per_second") / number("gemm_flops_per_second"));
  fmt::print("ratio           {:.1f} %\n", 100 * number("ratio"));
  fmt::print("memory traffic  {:.1f} GB/s\n", number("memory_bytes_per_second") / 1e9);
  fmt::print(
      "roofline        {:.3f} s at best: {:.1f} GFLOP of products, {:.2f} GB of everything else; ratio "
      "{:.1f} %\n",
      number("roofline_seconds"), number("roofline_flops") / 1e9, number("roofline_bytes") / 1e9,
      100 * number("roofline_ratio"));
  fmt::print("memory          predicted {}{}\n", format_bytes(number("predicted_memory_bytes")),
             r.contains("peak_memory_bytes") ? ", peak " + format_bytes(number("peak_memory_bytes")) : "");
  fmt::print("\ntasks of a step and rank, seconds\n");
  for (const Json& t : r["tasks"])
    fmt::print("  {:<28} {:8.4f}  {:5.1f} %\n", t["task"].get<std::string>(), t["seconds"].get<double>(),
               100 * t["seconds"].get<double>() / number("step_seconds"));
  if (r.contains("kernels")) print_kernels(r);
  if (r.contains("overhead") && !r["overhead"].is_null())
    fmt::print("\nbetween tasks: {:.2f} % of a step; processor time of other threads {:.2f} %\n",
               100 * r["overhead"]["idle_ratio"].get<double>(),
               100 * r["overhead"]["other_threads_ratio"].get<double>());
  if (!r.contains("pipeline")) return;
  const Json& p = r["pipeline"];
  const auto percent = [&](const char* key) { return 100 * p[key].get<double>(); };
  fmt::print(
      "\npipeline of {} ranks of one thread: {:.1f} tokens/s; one rank of {} threads: {:.1f}\n"
      "of one rank: {:.1f} %, without the bubble of even stages {:.1f} %\n"
      "possible with these stages and their bubble: {:.1f} %; of that {:.1f} %\n",
      p["ranks"].get<int>(), number("tokens_per_second"), r["threads"].get<int>(),
      p["single_rank_tokens_per_second"].get<double>(), percent("ratio_to_single_rank"),
      percent("ratio_to_single_rank_without_bubble"), percent("ideal_ratio"), percent("ratio_to_ideal"));
}

}  // namespace
}  // namespace trainer

int main(int argc, char** argv) {
  using namespace trainer;
  return run_program({"train_step", kUsage, true}, argc, argv, [](const Words& words) {
    return Report{measure(parse_train_step(words)), print};
  });
}
