#include "app/training_data.h"

#include <algorithm>

#include "data/gpt_index.h"
#include "data/synthetic_source.h"
#include "device/cores.h"

namespace trainer {

DataConfig make_data_config(const Config& config, const ModelConfig& model, const Tokenizer* tokenizer) {
  DataConfig data;
  const DataPath& paths = config.data.data_path;
  for (size_t i = 0; i < paths.prefixes.size(); ++i)
    data.sources.push_back(
        {paths.prefixes[i], paths.weights.empty() ? std::nullopt : std::optional(paths.weights[i])});
  data.split = config.data.split;
  data.sequence_length = config.data.sequence_length;
  data.seed = config.data.seed.value_or(config.training.seed);
  data.samples.vocab_size = model.vocabulary_size;
  if (tokenizer) data.samples.eod = tokenizer->eod();
  data.samples.eod_mask_loss = config.data.eod_mask_loss;
  data.samples.reset_position_ids = config.data.reset_position_ids;
  data.samples.document_masking = config.data.document_masking;
  // A document that must not see another is not asked to predict its first token either.
  data.samples.ignore_cross_document_labels = config.data.document_masking;
  return data;
}

namespace {

// Validation samples are far behind those of any training.
constexpr int64_t kFirstValidSample = int64_t{1} << 48;

void invent_samples(const Config& config, TrainingData& data) {
  const TrainingSection& t = config.training;
  const auto samples = [&](int64_t first, int64_t batches) {
    return std::make_shared<SyntheticSource>(config.data.sequence_length, data.model.vocabulary_size,
                                             config.data.seed.value_or(t.seed), first,
                                             batches * t.global_batch_size);
  };
  data.train = samples(0, t.steps);
  if (t.eval_interval > 0) data.valid = samples(kFirstValidSample, std::max<int64_t>(t.eval_steps, 1));
}

}  // namespace

TrainingData open_training_data(const Config& config) {
  TrainingData data;
  if (!config.data.tokenizer.empty()) data.tokenizer = load_tokenizer(config.data.tokenizer);
  data.model = make_model_config(config, data.tokenizer ? data.tokenizer->vocabulary_size() : 0);
  if (is_synthetic(config.data)) {
    invent_samples(config, data);
    return data;
  }
  const DatasetBuilder builder(make_data_config(config, data.model, data.tokenizer.get()));
  data.train = builder.train(config.training.steps * config.training.global_batch_size);
  if (config.training.eval_interval > 0 && parse_split(config.data.split)[static_cast<size_t>(Split::kValid)])
    data.valid = builder.evaluation(Split::kValid);
  return data;
}

TrainingData open_training(Config& config, const MpiEnvironment& mpi) {
  check_paths(config);
  const auto cores = cores_of_local_rank(allowed_cores(), mpi.local_rank(), mpi.local_size());
  bind_to_cores(cores);
  if (config.device.threads == 0) config.device.threads = static_cast<int64_t>(cores.size());
  TrainingData data = open_training_data(config);
  resolve_parallel(config, data.model, mpi.size());
  return data;
}

}  // namespace trainer
