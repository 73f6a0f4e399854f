// Tokenizer and datasets of a config.
#pragma once

#include <memory>

#include "app/config.h"
#include "comm/mpi/mpi_communicator.h"
#include "data/dataset_builder.h"
#include "data/tokenizer.h"

namespace trainer {

struct TrainingData {
  std::unique_ptr<Tokenizer> tokenizer;              // null: the config names none
  ModelConfig model;                                 // its vocabulary may be the tokenizer's
  std::shared_ptr<const SampleSource> train, valid;  // valid: null when there is no validation split
};

// What `config.data` names, for a model of `vocabulary_size` tokens.
DataConfig make_data_config(const Config& config, const ModelConfig& model, const Tokenizer* tokenizer);

// Opens everything the config's data section names. Throws InputError.
TrainingData open_training_data(const Config& config);

// Makes this process ready to be its rank of a run: checks the config's paths, binds the thread to the rank's
// cores, opens the data, and resolves `config` for the job's size. Throws InputError.
TrainingData open_training(Config& config, const MpiEnvironment& mpi);

}  // namespace trainer
