// How fast a training step is, next to the rate of matrix products measured in the same run.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <thread>

#include "app/options.h"
#include "app/training_rank.h"
#include "base/error.h"
#include "base/philox.h"
#include "base/statistics.h"
#include "base/units.h"
#include "comm/in_process.h"
#include "device/arena.h"
#include "device/cores.h"
#include "ops/gemm_rate.h"
#include "support/backend.h"
#include "support/models.h"
#include "support/program.h"

namespace trainer {
namespace {

constexpr const char* kUsage = R"(usage: train_step --model MODEL [options]

Times training steps (forward, backward, clipping, optimizer) on random tokens.

  --model MODEL            gpt2-124m, llama-110m, qwen2.5-0.5b, a config of trainer or a Hugging Face config.json
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

The step time is the median. The rate of matrix products is measured on the step's own shapes before, between
and after the timed steps; each shape counts with the median of these rounds, and the ceiling is the best shape.
Model FLOPs count causal attention half and no recomputation. Peak memory of the host is read after the first step.
)";

constexpr double kRoundSeconds = 0.6;  // of measuring matrix products

// Processor time of each thread that lives, by its id.
std::map<std::string, double> thread_seconds() {
  std::map<std::string, double> seconds;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    double nanoseconds = 0;
    if (std::ifstream(entry.path() / "schedstat") >> nanoseconds)
      seconds[entry.path().filename().string()] = 1e-9 * nanoseconds;
  }
  return seconds;
}

// The same tokens in every step.
class RandomInputs : public StepInputs {
 public:
  RandomInputs(const Config& config, int64_t vocabulary)
      : micro_batch_(config.training.micro_batch_size), sequence_(config.data.sequence_length) {
    const auto count = static_cast<size_t>(config.training.global_batch_size * sequence_);
    const Philox random(static_cast<uint64_t>(config.training.seed));
    tokens_.resize(count + 1);
    positions_.resize(count);
    for (size_t i = 0; i <= count; ++i)
      tokens_[i] = static_cast<int32_t>(random.block(i)[0] % static_cast<uint32_t>(vocabulary));
    for (size_t i = 0; i < count; ++i)
      positions_[i] = static_cast<int32_t>(i % static_cast<size_t>(sequence_));
  }
  BatchView micro_batch(int64_t, int index) override {
    const int64_t begin = index * micro_batch_ * sequence_;
    BatchView view;
    view.micro_batch = micro_batch_;
    view.sequence = sequence_;
    view.tokens = tokens_.data() + begin;
    view.labels = tokens_.data() + begin + 1;
    view.positions = positions_.data() + begin;
    return view;
  }

 private:
  int64_t micro_batch_, sequence_;
  std::vector<int32_t> tokens_, positions_;
};

// A pipeline of single-threaded ranks, each a thread bound to its share of the cores, or one rank on this
// thread.
class Grid {
 public:
  Grid(const std::string& backend, Config config, const ModelConfig& model, int stages, int threads)
      : on_host_(backend == "host"),
        communicators_(make_in_process_group(stages)),
        ranks_(static_cast<size_t>(stages)) {
    config.parallel.pipeline_parallel_size = stages;
    config.device.threads = threads;
    resolve_parallel(config, model, stages);
    for (int r = 0; r < stages; ++r) inputs_.emplace_back(config, model.vocabulary_size);
    on_every_rank([&](size_t r) {
      ranks_[r] = std::make_unique<TrainingRank>(config, model,
                                                 make_training_backend(backend, config, *communicators_[r]),
                                                 *communicators_[r], nullptr, nullptr, &inputs_[r]);
    });
  }

  // Makes everything ready and runs the step that is not timed. Returns the predicted bytes of the process,
  // or of its device.
  int64_t start() {
    int64_t predicted = on_host_ ? resident_memory().now : 0;
    for (const auto& rank : ranks_) {
      const MemoryPlan plan = rank->memory_plan();
      predicted += plan.total() - plan.program;
    }
    on_every_rank([&](size_t r) {
      ranks_[r]->allocate();
      ranks_[r]->initialize_random();
    });
    step();
    return predicted;
  }

  double step() {
    const int64_t number = ++steps_;
    const double begin = steady_seconds();
    const std::clock_t processor_begin = std::clock();
    const auto threads_begin = thread_seconds();
    on_every_rank([&](size_t r) { ranks_[r]->run(number, 1, nullptr); });
    const double seconds = steady_seconds() - begin;
    double other = static_cast<double>(std::clock() - processor_begin) / CLOCKS_PER_SEC;
    for (const auto& [thread, all] : thread_seconds())
      if (const auto before = threads_begin.find(thread); before != threads_begin.end())
        other -= all - before->second;
    other_seconds_.push_back(other);
    for (const auto& rank : ranks_)
      if (rank->take_result(number).skipped) run_error("step {} had a gradient that is not finite", number);
    return seconds;
  }

  const Model& model() const { return ranks_.front()->model(); }
  std::string describe() const { return ranks_.front()->describe_plan(); }
  // Processor time in each step of threads that it started: neither this one nor those of the kernels.
  const std::vector<double>& other_seconds() const { return other_seconds_; }
  std::vector<TimelineEvent> take_events() {
    std::vector<TimelineEvent> events;
    for (const auto& rank : ranks_)
      for (auto& event : rank->take_timeline().events) events.push_back(std::move(event));
    return events;
  }

 private:
  void on_every_rank(const std::function<void(size_t)>& body) {
    const size_t count = ranks_.size();
    if (count == 1) return body(0);
    std::vector<std::exception_ptr> errors(count);
    std::vector<std::jthread> threads;
    for (size_t r = 0; r < count; ++r)
      threads.emplace_back([&, r] {
        try {
          bind_to_cores(cores_of_local_rank(allowed_cores(), static_cast<int>(r), static_cast<int>(count)));
          body(r);
        } catch (const std::exception& error) {
          errors[r] = std::current_exception();
          communicators_[r]->abort(error.what());
        }
      });
    threads.clear();
    for (const auto& error : errors)
      if (error) std::rethrow_exception(error);
  }

  const bool on_host_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<RandomInputs> inputs_;
  std::vector<std::unique_ptr<TrainingRank>> ranks_;
  std::vector<double> other_seconds_;
  int64_t steps_ = 0;
};

ModelConfig named_model(const std::string& name) {
  for (const NamedModel& model : published_models())
    if (model.name == name) return model.shape;
  if (!std::filesystem::exists(name))
    input_error("--model {}: neither gpt2-124m, llama-110m or qwen2.5-0.5b nor a file with a model's shape",
                name);
  const Json json = parse_json_file(name);
  if (json.contains("model_type")) return model_config_from_hugging_face(json, name);
  const Config config = read_config(name);
  if (config.model.hugging_face.empty() && config.model.vocabulary_size == 0)
    input_error("{}: key 'model.vocabulary_size' is missing; no tokenizer is read here", name);
  return make_model_config(config);
}

struct Arguments {
  Config config;
  ModelConfig model;
  std::string model_name, backend, command;
  int threads = 0, steps = 0, ranks = 1;
};

Arguments parse(Words words) {
  Arguments a;
  a.backend = take_backend(words, bench_backends());
  std::vector<std::string> names = {"--model",       "--precision", "--sequence", "--sequences-per-step",
                                    "--micro-batch", "--steps"};
  if (a.backend == "host") names.insert(names.end(), {"--threads", "--ranks"});
  const Options options(words, names, {});
  a.command = command_line("train_step", a.backend, words);
  a.model_name = options.required("--model");
  a.model = named_model(a.model_name);
  a.steps = static_cast<int>(options.integer("--steps", 3, 3));
  a.ranks = static_cast<int>(options.integer("--ranks", 1, 1));
  const auto cores = static_cast<int>(allowed_cores().size());
  if (a.ranks > cores)
    input_error("--ranks {}: each rank needs a core of its own, and there are {}", a.ranks, cores);
  if (a.ranks > 1 && options.has("--threads"))
    input_error("--threads does not go with --ranks: the rank it is compared with has as many threads");
  a.threads = a.ranks > 1 ? a.ranks : static_cast<int>(options.integer("--threads", cores, 1));
  const std::string precision = options.find("--precision").value_or("bf16");
  if (precision != "bf16" && precision != "fp32")
    input_error("--precision: expected bf16 or fp32, found '{}'", precision);
  Config& c = a.config;
  c.device.threads = a.threads;
  c.precision.compute = precision == "bf16" ? DType::kBF16 : DType::kF32;
  c.data.sequence_length = options.integer("--sequence", 1024, 1);
  c.training.global_batch_size = options.integer("--sequences-per-step", 8, 1);
  c.training.micro_batch_size = options.integer("--micro-batch", 1, 1);
  if (c.training.global_batch_size % c.training.micro_batch_size != 0)
    input_error("--sequences-per-step {} is not a multiple of --micro-batch {}", c.training.global_batch_size,
                c.training.micro_batch_size);
  c.training.steps = a.steps + 1;
  c.optimizer.lr = 1e-4;
  c.optimizer.lr_decay_style = LrDecayStyle::kConstant;
  c.optimizer.lr_decay_steps = c.training.steps;
  for (int64_t step = 2; step <= c.training.steps; ++step) c.run.trace_steps.push_back(step);
  return a;
}

// The products of one micro-batch.
std::vector<GemmShape> product_shapes(const Arguments& a) {
  const int64_t tokens = a.config.training.micro_batch_size * a.config.data.sequence_length;
  std::vector<GemmShape> shapes = block_products(a.model, tokens);
  shapes.push_back(classifier_product(a.model, tokens));
  return shapes;
}

class ProductRates {
 public:
  ProductRates(const Arguments& a)
      : dtype_(a.config.precision.compute),
        shapes_(product_shapes(a)),
        name_(a.backend),
        threads_(a.threads),
        world_(make_in_process_group(1)),
        backend_(make_training_backend(a.backend, a.config, *world_.front())),
        rates_(shapes_.size()) {}

  void measure() {
    for (size_t s = 0; s < shapes_.size(); ++s)
      rates_[s].push_back(measure_gemm_rate(*backend_.kernels, dtype_, std::span(&shapes_[s], 1),
                                            kRoundSeconds / static_cast<double>(shapes_.size()),
                                            *backend_.device));
  }
  double best() const {
    double best = 0;
    for (const auto& rates : rates_) best = std::max(best, median(rates));
    return best;
  }
  Device& device() { return *backend_.device; }
  std::string machine() const {
    return describe_machine(name_, *backend_.device, *backend_.kernels, threads_);
  }
  Json to_json() const {
    Json list = Json::array();
    for (size_t s = 0; s < shapes_.size(); ++s)
      list.push_back({{"m", shapes_[s].m},
                      {"n", shapes_[s].n},
                      {"k", shapes_[s].k},
                      {"flops_per_second", median(rates_[s])}});
    return list;
  }

 private:
  DType dtype_;
  std::vector<GemmShape> shapes_;
  std::string name_;
  int threads_;
  std::vector<std::unique_ptr<Communicator>> world_;
  RankBackend backend_;
  std::vector<std::vector<double>> rates_;  // by shape, then round
};

// Seconds of one step and rank by kind of task and part of the model, the longest first.
Json breakdown(const std::vector<TimelineEvent>& events, int layers, int steps, int ranks) {
  std::map<std::string, double> seconds;
  for (const auto& e : events) {
    const char* part = e.layer < 0             ? ""
                       : e.layer == 0          ? " embedding"
                       : e.layer == layers - 1 ? " head"
                                               : " blocks";
    seconds[e.kind + part] += (e.end - e.begin) / steps / ranks;
  }
  std::vector<std::pair<double, std::string>> sorted;
  for (const auto& [name, value] : seconds) sorted.emplace_back(value, name);
  std::sort(sorted.rbegin(), sorted.rend());
  Json list = Json::array();
  for (const auto& [value, name] : sorted) list.push_back({{"task", name}, {"seconds", value}});
  return list;
}

// What the program around the tasks takes: time in which the compute lane runs none, though one rank never
// waits, and processor time of the program's other lanes, whose threads live for a step. Medians over the
// timed steps, as shares of them.
Json overhead(const std::vector<TimelineEvent>& events, const std::vector<double>& other_seconds, int timed) {
  struct Step {
    double begin = INFINITY, end = 0, busy = 0;
  };
  std::map<int, Step> steps;
  for (const TimelineEvent& e : events) {
    if (e.lane != "compute") continue;
    Step& step = steps[e.step];
    step.begin = std::min(step.begin, e.begin);
    step.end = std::max(step.end, e.end);
    step.busy += e.end - e.begin;
  }
  std::vector<double> idle, other;
  for (const auto& [number, step] : steps) {
    if (static_cast<int>(other_seconds.size()) - number >= timed) continue;
    const double length = step.end - step.begin;
    idle.push_back(1 - step.busy / length);
    other.push_back(other_seconds[static_cast<size_t>(number) - 1] / length);
  }
  if (idle.empty()) return nullptr;
  return {{"idle_ratio", median(idle)}, {"other_threads_ratio", median(other)}};
}

Json measure(const Arguments& a) {
  // The pipeline first, so that the peak is that of its ranks alone.
  std::optional<Grid> pipeline, single;
  const bool host = a.backend == "host";
  int64_t predicted = 0;
  if (a.ranks > 1) predicted = pipeline.emplace(a.backend, a.config, a.model, a.ranks, 1).start();
  if (a.ranks == 1) predicted = single.emplace(a.backend, a.config, a.model, 1, a.threads).start();
  const int64_t peak = resident_memory().peak;
  if (a.ranks > 1) single.emplace(a.backend, a.config, a.model, 1, a.threads).start();

  ProductRates rates(a);
  std::vector<double> single_seconds, pipeline_seconds;
  rates.measure();
  for (int s = 0; s < a.steps; ++s) {
    single_seconds.push_back(single->step());
    if (pipeline) pipeline_seconds.push_back(pipeline->step());
    rates.measure();
  }

  Grid& subject = pipeline ? *pipeline : *single;
  const auto tokens =
      static_cast<double>(a.config.training.global_batch_size * a.config.data.sequence_length);
  const double flops = subject.model().flops_per_token(a.config.data.sequence_length);
  const double seconds = median(pipeline ? pipeline_seconds : single_seconds);
  Json r;
  r["command"] = a.command;
  r["backend"] = a.backend;
  r["device"] = rates.device().name();
  r["machine"] = rates.machine();
  if (a.backend == "simt") r["simulated"] = true;
  r["plan"] = subject.describe();
  r["parameters"] = subject.model().parameter_count();
  r["threads"] = a.threads;
  r["step_seconds"] = seconds;
  r["all_step_seconds"] = pipeline ? pipeline_seconds : single_seconds;
  r["tokens_per_second"] = tokens / seconds;
  r["model_flops_per_token"] = flops;
  r["model_flops_per_second"] = flops * tokens / seconds;
  r["gemm_flops_per_second"] = rates.best();
  r["ratio"] = flops * tokens / seconds / rates.best();
  r["gemm_shapes"] = rates.to_json();
  if (host) r["peak_memory_bytes"] = peak;
  r["predicted_memory_bytes"] = predicted;
  const auto events = subject.take_events();
  r["tasks"] = breakdown(events, subject.model().layer_count(), a.steps, a.ranks);
  if (!pipeline) r["overhead"] = overhead(events, subject.other_seconds(), a.steps);
  if (pipeline) {
    const double micro_batches =
        static_cast<double>(a.config.training.global_batch_size / a.config.training.micro_batch_size);
    const double stretch = (micro_batches + a.ranks - 1) / micro_batches;  // by the ideal bubble
    const double one_rank = tokens / median(single_seconds);
    r["pipeline"] = {{"ranks", a.ranks},
                     {"micro_batches", micro_batches},
                     {"single_rank_tokens_per_second", one_rank},
                     {"tokens_per_second_without_bubble", tokens / seconds * stretch},
                     {"ratio_to_single_rank", tokens / seconds / one_rank},
                     {"ratio_to_single_rank_without_bubble", tokens / seconds * stretch / one_rank}};
  }
  return r;
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
  fmt::print("ratio           {:.1f} %\n", 100 * number("ratio"));
  fmt::print("memory          predicted {}{}\n", format_bytes(number("predicted_memory_bytes")),
             r.contains("peak_memory_bytes") ? ", peak " + format_bytes(number("peak_memory_bytes")) : "");
  fmt::print("\ntasks of a step and rank, seconds\n");
  for (const Json& t : r["tasks"])
    fmt::print("  {:<28} {:8.4f}  {:5.1f} %\n", t["task"].get<std::string>(), t["seconds"].get<double>(),
               100 * t["seconds"].get<double>() / number("step_seconds"));
  if (r.contains("overhead") && !r["overhead"].is_null())
    fmt::print("\nbetween tasks: {:.2f} % of a step; processor time of other threads {:.2f} %\n",
               100 * r["overhead"]["idle_ratio"].get<double>(),
               100 * r["overhead"]["other_threads_ratio"].get<double>());
  if (!r.contains("pipeline")) return;
  const Json& p = r["pipeline"];
  fmt::print("\npipeline of {} ranks of one thread: {:.1f} tokens/s, without its ideal bubble {:.1f}\n",
             p["ranks"].get<int>(), number("tokens_per_second"),
             p["tokens_per_second_without_bubble"].get<double>());
  fmt::print("one rank of {} threads: {:.1f} tokens/s; the pipeline reaches {:.1f} % of it, {:.1f} %\n",
             r["threads"].get<int>(), p["single_rank_tokens_per_second"].get<double>(),
             100 * p["ratio_to_single_rank"].get<double>(),
             100 * p["ratio_to_single_rank_without_bubble"].get<double>());
}

}  // namespace
}  // namespace trainer

int main(int argc, char** argv) {
  using namespace trainer;
  return run_program({"train_step", kUsage, true}, argc, argv, [](const Words& words) {
    return Report{measure(parse(words)), print};
  });
}
