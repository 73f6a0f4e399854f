// The configuration of a run: one JSON object with one section per concern. docs/configuration.md lists every
// key.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "comm/collectives.h"
#include "model/config.h"
#include "ops/tensor.h"
#include "optim/lr_schedule.h"
#include "schedule/problem.h"

namespace trainer {

struct ModelSection {
  std::string hugging_face;     // where the shape comes from; empty: the inline shape below
  std::string initialize_from;  // empty: random weights
  Architecture architecture = Architecture::kLlama;
  int64_t num_layers = 0, hidden_size = 0, ffn_hidden_size = 0;
  int64_t num_attention_heads = 0, num_query_groups = 0, kv_channels = 0;
  int64_t vocabulary_size = 0;  // 0: the tokenizer's
  int64_t max_position_embeddings = 0;
  double norm_epsilon = 1e-5, rotary_base = 10000;
  std::optional<RopeScaling> rope_scaling;
  std::optional<bool> tie_word_embeddings, add_qkv_bias;
  double init_method_std = 0.02;
};

struct DataPath {
  std::vector<std::string> prefixes;
  std::vector<double> weights;  // one per prefix; empty: in proportion to the datasets' sizes
};

struct DataSection {
  DataPath data_path;
  std::string split = "969,30,1";
  std::string tokenizer;  // "byte", a path, or empty
  int64_t sequence_length = 0;
  std::optional<int64_t> seed;
  bool eod_mask_loss = false, reset_position_ids = false, document_masking = false;
};

struct TrainingSection {
  int64_t steps = 0, micro_batch_size = 0, global_batch_size = 0;
  int64_t seed = 1234;
  int64_t eval_interval = 0, eval_steps = 0, log_interval = 1;
};

struct ParallelSection {
  int64_t pipeline_parallel_size = 1, data_parallel_size = 0, tensor_parallel_size = 1;
  std::optional<bool> sequence_parallel;
  std::vector<int64_t> stage_layers;
  int64_t reproducible_group = 0;
  int64_t zero_stage = 0;
  bool shard_gradients = false;
  SumAlgorithm grad_sync = SumAlgorithm::kDirect;
};

enum class FrontEnd : uint8_t { kOneFOneB };

struct ScheduleSection {
  FrontEnd front_end = FrontEnd::kOneFOneB;
  ActivationPolicy activation = ActivationPolicy::kFullSave;
  bool last_stage_keeps = true;
  int64_t recovery_buffers = 0;
  std::vector<std::string> passes = {"forward_side_recovery", "layer_state_pipeline", "update_prefetch",
                                     "transfer_priority"};
};

struct PrecisionSection {
  DType compute = DType::kBF16;
};

struct OptimizerSection {
  double lr = 0, min_lr = 0;
  LrDecayStyle lr_decay_style = LrDecayStyle::kCosine;
  int64_t lr_warmup_steps = 0, lr_decay_steps = 0, wsd_decay_steps = 0;
  WsdDecayStyle wsd_decay_style = WsdDecayStyle::kLinear;
  double weight_decay = 0.1, adam_beta1 = 0.9, adam_beta2 = 0.95, adam_eps = 1e-8;
  double clip_grad = 1;  // 0: off
  bool skip_non_finite = true;
  int64_t max_consecutive_skips = 3;
};

struct CheckpointSection {
  int64_t save_interval = 0, keep_last = 2;
  bool save_at_end = true, background = true;
};

enum class DeviceKind : uint8_t { kHost, kCuda, kMt3000Simulated };

struct ByteSize {
  int64_t bytes = 0;
};

struct DeviceSection {
  DeviceKind kind = DeviceKind::kHost;
  int64_t threads = 0;
  ByteSize memory_budget;  // 0: none
};

enum class ProgressStyle : uint8_t { kAuto, kLine, kBar };

struct RunSection {
  std::string directory;
  std::vector<int64_t> trace_steps;
  bool tensorboard = true;
  ProgressStyle progress = ProgressStyle::kAuto;
};

struct Config {
  ModelSection model;
  DataSection data;
  TrainingSection training;
  ParallelSection parallel;
  ScheduleSection schedule;
  PrecisionSection precision;
  OptimizerSection optimizer;
  CheckpointSection checkpoint;
  DeviceSection device;
  RunSection run;
};

// Reads, overrides ("a.b=c": c as JSON, else as a string), checks everything that needs neither other files
// nor the number of ranks, and fills in the defaults that follow from other keys. Throws InputError.
Config read_config(const std::string& path, std::span<const std::string> overrides = {});
// The same for a text; `name` heads messages in place of the file's path.
Config parse_config(std::string_view text, const std::string& name,
                    std::span<const std::string> overrides = {});

// Samples are invented, not read.
bool is_synthetic(const DataSection& data);

// Every file and folder that the config names is there. Throws InputError naming key and path.
void check_paths(const Config& config);

// The config.json that model.hugging_face names, or that lies in the folder it names.
std::string hugging_face_file(const Config& config);
// Whether its model_type's shape can be planned for but not trained. `where` heads messages.
bool is_planned_only(const Json& json, const std::string& where);
// The shape to train. `tokenizer_vocabulary` is the size used where the config leaves it to the tokenizer; 0:
// unknown. Reads model.hugging_face (a folder or a .json file). Throws InputError, also for shapes that
// cannot be trained.
ModelConfig make_model_config(const Config& config, int64_t tokenizer_vocabulary = 0);

// Fills in data_parallel_size, sequence_parallel and stage_layers and checks that `world_size` ranks, the
// batch and the layers fit one another. Throws InputError.
void resolve_parallel(Config& config, const ModelConfig& model, int world_size);

// Complete and in declaration order; parse_config reads it back to an equal config.
Json config_to_json(const Config& config);

LrSchedule make_lr_schedule(const Config& config);

// JSON Schema (draft 7) of the config file: configs/schema.json.
Json config_schema();
// docs/configuration.md.
std::string config_reference();
// `trainer schema [--reference]`: prints the one or the other. Returns the exit code.
int schema_command(std::span<const std::string> arguments);

}  // namespace trainer
