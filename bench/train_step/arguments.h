// What the program is asked to measure.
#pragma once

#include <string>

#include "app/config.h"
#include "model/config.h"
#include "support/program.h"

namespace trainer {

struct TrainStepArguments {
  Config config;
  ModelConfig model;
  std::string model_name, backend, command;
  int threads = 0, steps = 0, ranks = 1;

  // Of one step, and of one forward and backward.
  int64_t step_tokens() const { return config.training.global_batch_size * config.data.sequence_length; }
  int64_t micro_batch_tokens() const {
    return config.training.micro_batch_size * config.data.sequence_length;
  }
};

TrainStepArguments parse_train_step(Words words);

}  // namespace trainer
