// One point of what the planner chooses from, and the program's problem for it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "schedule/problem.h"

namespace trainer {

// What a plan is for. The model comes as catalogues, so that no formula of it is kept here.
struct PlanModel {
  std::vector<LayerCatalogue> layers;  // embedding, blocks, head, of one of the tensor-parallel ranks
  int64_t workspace_bytes = 0, tensor_staging_bytes = 0;
};

struct PlanRequest {
  int devices = 1;
  int64_t global_batch_size = 1;  // sequences
  int64_t sequence_length = 1;    // tokens
  int64_t element_bytes = 2;
  int64_t memory_budget = 0;  // bytes per rank
  bool updates_wait_for_norm = true;
  std::vector<std::string> other_passes;  // of every plan, behind those that are chosen among
  std::vector<int> tensor_sizes = {1, 2, 4, 8};
  std::vector<int64_t> micro_batch_sizes = {1, 2, 4, 8};
  // Throws InputError where the model cannot be cut into so many parts.
  std::function<PlanModel(int tensor_ranks, int64_t micro_batch_size)> model;
};

struct PlanChoice {
  int stages = 1, replicas = 1, tensor_ranks = 1;  // P, D, T
  int zero_stage = 0;                              // Z
  bool shard_gradients = false;
  int64_t micro_batch_size = 1;  // b, sequences
  int micro_batches = 1;         // A
  ActivationPolicy activation = ActivationPolicy::kFullSave;
  int recovery_buffers = 0;
  std::vector<std::string> passes;
  std::vector<int64_t> stage_layers;  // transformer layers

  bool has(const std::string& pass) const;
  bool operator==(const PlanChoice&) const = default;
};

// "P8 D32 T1 Z2 b1 A128 checkpoint, layers 9 x 8 + 8, forward_side_recovery ..."
std::string describe(const PlanChoice& choice);
const char* name_of(ActivationPolicy policy);
// Whether plans are made with and without this pass.
bool is_chosen_among(const std::string& pass);
// "9, 8, 8, 7" shortened to "9, 8 x 2, 7".
std::string describe_stages(const std::vector<int64_t>& stage_layers);

// The last stage keeps what fits; nothing is kept for good yet where `decide_kept` is false.
Problem problem_of(const PlanRequest& request, const PlanModel& model, const PlanChoice& choice,
                   bool decide_kept = true);

// So many equal blocks over stages that have `base[s]` already and cost `each[s]` a block, at least one each:
// the largest sum is as small as can be. Ties go to the later stage.
std::vector<int64_t> balanced_stage_layers(int64_t blocks, std::vector<double> base,
                                           const std::vector<double>& each);

}  // namespace trainer
