#include "train_step/arguments.h"

#include <algorithm>
#include <filesystem>

#include "app/options.h"
#include "base/error.h"
#include "device/cores.h"
#include "support/backend.h"
#include "support/models.h"

namespace trainer {
namespace {

// A published model that learns positions gets as many as `sequence` needs; a file says how many there are.
ModelConfig named_model(const std::string& name, int64_t sequence) {
  for (const NamedModel& published : published_models()) {
    if (published.name != name) continue;
    ModelConfig model = published.shape;
    if (!model.rope()) model.max_position_embeddings = std::max(model.max_position_embeddings, sequence);
    return model;
  }
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

}  // namespace

TrainStepArguments parse_train_step(Words words) {
  TrainStepArguments a;
  a.backend = take_backend(words, bench_backends());
  std::vector<std::string> names = {"--model",       "--precision", "--sequence", "--sequences-per-step",
                                    "--micro-batch", "--steps"};
  if (a.backend == "host") names.insert(names.end(), {"--threads", "--ranks"});
  const Options options(words, names, {});
  a.command = command_line("train_step", a.backend, words);
  a.model_name = options.required("--model");
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
  a.model = named_model(a.model_name, c.data.sequence_length);
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

}  // namespace trainer
