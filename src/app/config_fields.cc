#include "app/config_fields.h"

#include <algorithm>
#include <utility>

#include "schedule/passes.h"

namespace trainer::config_fields {
namespace {

// Collects the fields of one section.
class Fields {
 public:
  template <class T>
  Field& add(const char* name, T& member, const char* doc) {
    return push(name, &member, doc);
  }

  template <class Enum>
  Field& choice(const char* name, Enum& member, std::vector<std::pair<Enum, std::string>> options,
                const char* doc) {
    Choice choice;
    std::vector<Enum> values;
    for (auto& [value, word] : options) {
      values.push_back(value);
      choice.names.push_back(std::move(word));
    }
    choice.get = [&member, values] {
      return static_cast<size_t>(std::find(values.begin(), values.end(), member) - values.begin());
    };
    choice.set = [&member, values](size_t index) { member = values[index]; };
    return push(name, std::move(choice), doc);
  }

  std::vector<Field> take() { return std::move(fields_); }

 private:
  Field& push(const char* name, Value value, const char* doc) {
    Field field;
    field.name = name;
    field.value = std::move(value);
    field.doc = doc;
    fields_.push_back(std::move(field));
    return fields_.back();
  }
  std::vector<Field> fields_;
};

std::vector<Field> describe(ModelSection& c) {
  Fields f;
  f.add("hugging_face", c.hugging_face,
        "Folder with a Hugging Face config.json, or such a file itself: the model's shape. Excludes the "
        "inline shape.")
      .known_as({"model_name_or_path"});
  f.add("initialize_from", c.initialize_from,
        "Hugging Face folder whose weights the run starts from; empty: random weights.")
      .known_as({"load", "pretrained_checkpoint"});
  const auto shape = [&](Field& field) -> Field& { return field.unless("hugging_face"); };
  shape(f.choice("architecture", c.architecture,
                 {{Architecture::kLlama, "llama"},
                  {Architecture::kQwen2, "qwen2"},
                  {Architecture::kQwen3, "qwen3"},
                  {Architecture::kGpt2, "gpt2"}},
                 "Kind of transformer block."))
      .known_as({"model_type"});
  shape(f.add("num_layers", c.num_layers, "Transformer layers."))
      .at_least(1)
      .required()
      .known_as({"num_hidden_layers", "n_layer"});
  shape(f.add("hidden_size", c.hidden_size, "Width of the residual stream."))
      .at_least(1)
      .required()
      .known_as({"n_embd", "dim"});
  shape(f.add("ffn_hidden_size", c.ffn_hidden_size, "Width inside the feed-forward network."))
      .at_least(0)
      .defaults_to("4 x hidden_size for gpt2; must be given for the others")
      .known_as({"intermediate_size", "n_inner"});
  shape(f.add("num_attention_heads", c.num_attention_heads, "Query heads."))
      .at_least(1)
      .required()
      .known_as({"n_head"});
  shape(f.add("num_query_groups", c.num_query_groups, "Key/value heads; must divide num_attention_heads."))
      .at_least(0)
      .defaults_to("num_attention_heads")
      .known_as({"num_key_value_heads"});
  shape(f.add("kv_channels", c.kv_channels, "Width of one attention head."))
      .at_least(0)
      .defaults_to("hidden_size / num_attention_heads")
      .known_as({"head_dim"});
  shape(f.add("vocabulary_size", c.vocabulary_size, "Token ids; 0: as many as data.tokenizer has."))
      .at_least(0)
      .known_as({"vocab_size", "padded_vocab_size"});
  shape(f.add("max_position_embeddings", c.max_position_embeddings,
              "Longest sequence; the number of learned positions where the architecture learns them (gpt2)."))
      .at_least(0)
      .defaults_to("data.sequence_length")
      .known_as({"n_positions", "n_ctx"});
  shape(f.add("norm_epsilon", c.norm_epsilon, "Added to the variance in every normalisation."))
      .above(0)
      .known_as({"rms_norm_eps", "layer_norm_epsilon", "layernorm_epsilon"});
  shape(f.add("rotary_base", c.rotary_base, "Base of the rotary position frequencies."))
      .above(0)
      .known_as({"rope_theta"});
  shape(f.add("rope_scaling", c.rope_scaling, "Llama-3 scaling of the rotary frequencies; null: none."));
  shape(f.add("tie_word_embeddings", c.tie_word_embeddings, "Classifier and embedding share one matrix."))
      .defaults_to("true for gpt2, else false");
  shape(f.add("add_qkv_bias", c.add_qkv_bias,
              "Bias on the query, key and value projections (llama: on the output projection too). Only "
              "llama has the choice."))
      .defaults_to("true for qwen2 and gpt2, else false")
      .known_as({"attention_bias"});
  shape(f.add("init_method_std", c.init_method_std, "Standard deviation of random initial weights."))
      .above(0)
      .known_as({"initializer_range", "init_std"});
  return f.take();
}

std::vector<Field> describe(DataSection& c) {
  Fields f;
  f.add("data_path", c.data_path,
        "Dataset: the path of its .bin and .idx files without the ending; or a list of such; or a list that "
        "alternates weight and path. \"synthetic\": invented samples, for measurements.")
      .required()
      .known_as({"train_data_path", "dataset", "data_prefix"});
  f.add("split", c.split, "Shares of the documents that go to training, validation and test.");
  f.add("tokenizer", c.tokenizer,
        "\"byte\", or a tokenizer.json, tokenizer.model or folder with one: vocabulary size and "
        "end-of-document token.")
      .known_as({"tokenizer_model", "tokenizer_type"});
  f.add("sequence_length", c.sequence_length, "Tokens in a sample.")
      .at_least(1)
      .required()
      .known_as({"seq_length", "seq_len", "block_size", "max_seq_len"});
  f.add("seed", c.seed, "Order of documents and samples.")
      .at_least(0)
      .at_most(4294967295.0)
      .defaults_to("training.seed");
  f.add("eod_mask_loss", c.eod_mask_loss, "No loss where the input is the end-of-document token.");
  f.add("reset_position_ids", c.reset_position_ids,
        "Positions start again from 0 after an end-of-document token.");
  f.add("document_masking", c.document_masking, "Tokens attend only within their own document.")
      .known_as({"reset_attention_mask", "inter_document_masking"});
  return f.take();
}

std::vector<Field> describe(TrainingSection& c) {
  Fields f;
  f.add("steps", c.steps, "Training steps; each makes one update from one global batch.")
      .at_least(1)
      .required()
      .known_as({"train_iters", "max_steps", "num_steps", "train_steps"});
  f.add("micro_batch_size", c.micro_batch_size, "Samples that go through the model at a time.")
      .at_least(1)
      .required()
      .known_as({"per_device_train_batch_size", "train_micro_batch_size_per_gpu"});
  f.add("global_batch_size", c.global_batch_size,
        "Samples of a step, over all ranks; a multiple of micro_batch_size x data_parallel_size.")
      .at_least(1)
      .required()
      .known_as({"gradient_accumulation_steps", "gradient_accumulation", "train_batch_size", "batch_size"});
  f.add("seed", c.seed, "Random initial weights, and the data order unless data.seed is given.")
      .at_least(0)
      .at_most(4294967295.0);
  f.add("eval_interval", c.eval_interval, "Steps between evaluations on the validation split; 0: none.")
      .at_least(0);
  f.add("eval_steps", c.eval_steps,
        "Global batches in an evaluation; 0: the whole validation split, each token once.")
      .at_least(0)
      .known_as({"eval_iters"});
  f.add("log_interval", c.log_interval, "Steps between log lines. metrics.jsonl holds every step.")
      .at_least(1)
      .known_as({"logging_steps"});
  return f.take();
}

std::vector<Field> describe(ParallelSection& c) {
  Fields f;
  f.add("pipeline_parallel_size", c.pipeline_parallel_size, "Pipeline stages.")
      .at_least(1)
      .known_as({"pipeline_parallel_degree", "pp", "num_stages"});
  f.add("tensor_parallel_size", c.tensor_parallel_size,
        "Ranks that share every layer: attention heads, feed-forward width and vocabulary are cut over them.")
      .at_least(1)
      .known_as({"tensor_model_parallel_size", "tensor_parallel_degree", "tp"});
  f.add("sequence_parallel", c.sequence_parallel,
        "Norms and what lies between the layers are cut over the tensor-parallel ranks too, by tokens.")
      .defaults_to("true where tensor_parallel_size is above 1");
  f.add("data_parallel_size", c.data_parallel_size,
        "Replicas of the pipeline; 0: ranks / (pipeline_parallel_size x tensor_parallel_size).")
      .at_least(0)
      .known_as({"data_parallel_replicate_degree", "dp"});
  f.add("stage_layers", c.stage_layers,
        "Transformer layers of each stage. The embedding belongs to the first stage, the head to the last.")
      .at_least(1)
      .defaults_to("as even as can be, larger stages first")
      .known_as({"num_layers_per_stage", "pipeline_model_parallel_layout"});
  f.add("zero_stage", c.zero_stage,
        "ZeRO over the replicas. 1: each updates a shard of the optimizer state; 2: gradients end in shards; "
        "3: "
        "weights are kept in shards and gathered for each use.")
      .at_least(0)
      .at_most(3)
      .known_as({"stage", "zero_optimization"});
  f.add("shard_gradients", c.shard_gradients,
        "With zero_stage 2 and 3: gradients are synchronised after each micro-batch and only shards "
        "accumulate: less memory, more traffic, another order of sums. In a reproducible group: after each "
        "virtual rank, in the group's order.");
  f.choice("grad_sync", c.grad_sync,
           {{SumAlgorithm::kDirect, "direct"},
            {SumAlgorithm::kRing, "ring"},
            {SumAlgorithm::kTree, "tree"},
            {SumAlgorithm::kHierarchical, "hierarchical"}},
           "How gradients are summed over the replicas. Beyond two replicas, ring and hierarchical add in "
           "orders of "
           "their own.");
  f.add("reproducible_group", c.reproducible_group,
        "A power of two: results have the same bits for every data_parallel_size that divides it; 0: off.")
      .at_least(0)
      .at_most(1 << 20);
  return f.take();
}

std::vector<Field> describe(ScheduleSection& c) {
  Fields f;
  f.choice("front_end", c.front_end, {{FrontEnd::kOneFOneB, "one_f_one_b"}},
           "How a step is laid out over the stages.");
  f.choice(
       "activation", c.activation,
       {{ActivationPolicy::kFullSave, "full_save"},
        {ActivationPolicy::kSelective, "selective"},
        {ActivationPolicy::kCheckpoint, "checkpoint"},
        {ActivationPolicy::kKeepWhatFits, "keep_what_fits"}},
       "What forward keeps for backward beside each layer's input (the rest is computed again): every saved "
       "tensor; those that are dear to compute again for their bytes; none; or as many as "
       "device.memory_budget allows, the dearest first.")
      .known_as({"recompute_granularity", "gradient_checkpointing", "activation_checkpointing"});
  f.add("last_stage_keeps", c.last_stage_keeps,
        "With selective and checkpoint: the last stage, whose backward follows its forward at once, keeps "
        "everything where device.memory_budget allows.");
  f.add("recovery_buffers", c.recovery_buffers,
        "Layers whose saved tensors forward_side_recovery may hold ahead of their backwards; 0: all of a "
        "stage.")
      .at_least(0);
  f.add("passes", c.passes,
        "Rewrites of the step graph. Without any: one batch of synchronisation and updates after the last "
        "backward, and a barrier before the next step. layer_state_pipeline: a layer's gradient is "
        "synchronised as soon as it is complete. update_prefetch: the next step waits for each layer's "
        "weights "
        "only where it uses them. forward_side_recovery: what was not kept is recovered in gaps before it is "
        "needed. transfer_priority: over several machines, gradients and weights between replicas let "
        "transfers "
        "between stages pass.")
      .each_of(pass_names());
  return f.take();
}

std::vector<Field> describe(PrecisionSection& c) {
  Fields f;
  f.choice("compute", c.compute, {{DType::kF32, "fp32"}, {DType::kBF16, "bf16"}},
           "Type of working weights and activations. Master weights, gradients and optimizer state are fp32 "
           "either way.")
      .known_as({"bf16", "fp16", "dtype", "torch_dtype"});
  return f.take();
}

std::vector<Field> describe(OptimizerSection& c) {
  Fields f;
  f.add("lr", c.lr, "Peak learning rate.").at_least(0).required().known_as({"learning_rate", "max_lr"});
  f.add("min_lr", c.min_lr, "Learning rate where decay ends.").at_least(0).known_as({"lr_min"});
  f.choice("lr_decay_style", c.lr_decay_style,
           {{LrDecayStyle::kConstant, "constant"},
            {LrDecayStyle::kLinear, "linear"},
            {LrDecayStyle::kCosine, "cosine"},
            {LrDecayStyle::kWsd, "wsd"}},
           "Course of the learning rate after warm-up; wsd: stable, then a decaying tail.")
      .known_as({"lr_scheduler_type", "scheduler"});
  f.add("lr_warmup_steps", c.lr_warmup_steps, "Updates over which the learning rate rises linearly from 0.")
      .at_least(0)
      .known_as({"lr_warmup_iters", "warmup_steps", "num_warmup_steps"});
  f.add("lr_decay_steps", c.lr_decay_steps, "Updates until the learning rate is min_lr, warm-up counted.")
      .at_least(0)
      .defaults_to("training.steps")
      .known_as({"lr_decay_iters", "decay_steps"});
  f.add("wsd_decay_steps", c.wsd_decay_steps, "Updates in the tail of wsd; it ends at lr_decay_steps.")
      .at_least(0)
      .known_as({"lr_wsd_decay_iters"});
  f.choice("wsd_decay_style", c.wsd_decay_style,
           {{WsdDecayStyle::kLinear, "linear"},
            {WsdDecayStyle::kCosine, "cosine"},
            {WsdDecayStyle::kExponential, "exponential"},
            {WsdDecayStyle::kMinusSqrt, "minus_sqrt"}},
           "Form of the tail of wsd.")
      .known_as({"lr_wsd_decay_style"});
  f.add("weight_decay", c.weight_decay,
        "Decoupled weight decay; acts on matrices (embeddings included), never on norms and biases.")
      .at_least(0);
  f.add("adam_beta1", c.adam_beta1, "Decay of AdamW's first moment.")
      .at_least(0)
      .below(1)
      .known_as({"beta1", "betas"});
  f.add("adam_beta2", c.adam_beta2, "Decay of AdamW's second moment.")
      .at_least(0)
      .below(1)
      .known_as({"beta2"});
  f.add("adam_eps", c.adam_eps, "Added to the root of AdamW's second moment.")
      .above(0)
      .known_as({"eps", "epsilon"});
  f.add("clip_grad", c.clip_grad,
        "Largest global L2 norm of the gradient; larger ones are scaled down to it; 0: off.")
      .at_least(0)
      .known_as({"grad_clip", "max_grad_norm", "max_norm", "gradient_clipping"});
  f.add("skip_non_finite", c.skip_non_finite, "Make no update in a step whose gradient norm is not finite.");
  f.add("max_consecutive_skips", c.max_consecutive_skips,
        "Skipped steps in a row after which the run stops with an error.")
      .at_least(0);
  return f.take();
}

std::vector<Field> describe(CheckpointSection& c) {
  Fields f;
  f.add("save_interval", c.save_interval, "Steps between checkpoints; 0: only at the end.")
      .at_least(0)
      .known_as({"save_steps", "save_every"});
  f.add("keep_last", c.keep_last, "Newest checkpoints to keep; 0: all.")
      .at_least(0)
      .known_as({"save_total_limit"});
  f.add("save_at_end", c.save_at_end, "Save a checkpoint after the last step.");
  f.add(
      "background", c.background,
      "Checkpoints between steps are written while training goes on, from a copy of the state: so many bytes "
      "more of host memory as the checkpoint has (12 a parameter; data-parallel ranks of one machine share "
      "them); not where device.memory_budget, of the host, has no room for it. false: training waits while "
      "the state is written, and there is no copy.");
  return f.take();
}

std::vector<Field> describe(DeviceSection& c) {
  Fields f;
  f.choice(
      "kind", c.kind,
      {{DeviceKind::kHost, "host"},
       {DeviceKind::kCuda, "cuda"},
       {DeviceKind::kMt3000Simulated, "mt3000-sim"}},
      "What the ranks compute on; host: CPU cores; cuda: NVIDIA GPUs, which the ranks of a machine take in "
      "turn; mt3000-sim: a simulated cluster of 24 DSPs, which counts cycles and computes products in fp16 "
      "(tiny "
      "models; precision.compute must be fp32).");
  f.add("threads", c.threads, "Compute threads of a rank; 0: one per core that the rank is bound to.")
      .at_least(0)
      .known_as({"num_threads", "omp_num_threads"});
  f.add("memory_budget", c.memory_budget,
        "Most memory that a rank's buffers may take, in bytes or as \"20GiB\"; 0: no limit.")
      .at_least(0)
      .known_as({"max_memory", "memory"});
  return f.take();
}

std::vector<Field> describe(RunSection& c) {
  Fields f;
  f.add("directory", c.directory,
        "Run directory: resolved config, metrics, checkpoints, traces and report go there.")
      .required()
      .known_as({"output_dir", "save", "run_dir", "out_dir"});
  f.add("trace_steps", c.trace_steps,
        "Steps whose timeline is recorded for the trace and the report; the first is 1.")
      .at_least(1);
  f.add("tensorboard", c.tensorboard, "Write TensorBoard event files.").known_as({"tensorboard_dir"});
  f.choice("progress", c.progress,
           {{ProgressStyle::kAuto, "auto"}, {ProgressStyle::kLine, "line"}, {ProgressStyle::kBar, "bar"}},
           "One redrawn bar, or one line every log_interval steps; auto: a bar on a terminal.");
  return f.take();
}

}  // namespace

std::vector<Field> describe(RopeScaling& scaling) {
  Fields f;
  f.add("factor", scaling.factor, "Long wavelengths are stretched by this.").at_least(1).required();
  f.add("low_frequency_factor", scaling.low_frequency_factor,
        "Wavelengths above original_max_positions / this are stretched in full.")
      .above(0)
      .known_as({"low_freq_factor"});
  f.add("high_frequency_factor", scaling.high_frequency_factor,
        "Wavelengths below original_max_positions / this are left alone.")
      .above(0)
      .known_as({"high_freq_factor"});
  f.add("original_max_positions", scaling.original_max_positions, "Sequence length before the stretch.")
      .at_least(1)
      .known_as({"original_max_position_embeddings"});
  return f.take();
}

std::vector<Section> describe(Config& c) {
  std::vector<Section> sections;
  const auto add = [&](const char* name, const char* doc, std::vector<Field> fields) {
    sections.push_back({name, doc, std::move(fields)});
  };
  add("model", "The model's shape: either `hugging_face`, or the keys of the shape itself.",
      describe(c.model));
  add("data", "What is trained on.", describe(c.data));
  add("training", "How long and in which batches.", describe(c.training));
  add("parallel",
      "How the work is cut over ranks. Ranks = pipeline_parallel_size x data_parallel_size x "
      "tensor_parallel_size.",
      describe(c.parallel));
  add("schedule", "The order of a step's tasks. Changes time and memory, never what is learned.",
      describe(c.schedule));
  add("precision", "Number formats.", describe(c.precision));
  add("optimizer", "AdamW and its learning rate.", describe(c.optimizer));
  add("checkpoint", "When the state is saved.", describe(c.checkpoint));
  add("device", "What a rank runs on.", describe(c.device));
  add("run", "Where results go and what is shown.", describe(c.run));
  return sections;
}

}  // namespace trainer::config_fields
