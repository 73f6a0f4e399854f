#include "plan/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/units.h"
#include "sim/predict.h"

namespace trainer {
namespace {

// Copies of what is recovered that a plan may have ahead of their backwards: one in use, one being filled.
constexpr int kRecoveryBuffers = 2;
// Plans of one grid and micro-batch that are simulated: they differ little. Those that differ by passes or
// split alone are left to the closed form.
constexpr int kSimulatedAlike = 2;
// How much larger a cluster is tried when nothing fits.
constexpr int kLargestFactor = 64;

std::vector<int> divisors(int n) {
  std::vector<int> list;
  for (int d = 1; d <= n; ++d)
    if (n % d == 0) list.push_back(d);
  return list;
}

int64_t block_count(const PlanModel& model) { return static_cast<int64_t>(model.layers.size()) - 2; }

std::string describe_rank_bytes(const PlanChoice& choice, int stage, int64_t bytes, int64_t budget) {
  return fmt::format("stage {} of {} needs {}, {} more than the budget of {}", stage, choice.stages,
                     format_bytes(static_cast<double>(bytes)),
                     format_bytes(static_cast<double>(bytes - budget)),
                     format_bytes(static_cast<double>(budget)));
}

struct Candidate {
  PlanChoice choice;
  const PlanModel* model = nullptr;
  const LayerSeconds* seconds = nullptr;
  StepParts estimate;
};

// The part that one plan loses most by, and how much.
std::pair<std::string, double> costliest_part(const StepParts& mine, const StepParts& best) {
  std::pair<std::string, double> worst{"main path", mine.main_path - best.main_path};
  const auto offer = [&](const char* name, double excess) {
    if (excess > worst.second) worst = {name, excess};
  };
  offer("communication", mine.communication - best.communication);
  offer("update", mine.update - best.update);
  offer("prefetch", mine.prefetch - best.prefetch);
  offer("recovery", mine.recovery - best.recovery);
  return worst;
}

class Search {
 public:
  Search(const PlanRequest& request, const Platform& platform, const PlanEffort& effort)
      : request_(request), platform_(platform), effort_(effort) {}

  PlanSearch run() {
    enumerate(request_.devices, true);
    if (!candidates_.empty()) simulate_best();
    if (result_.plans.empty()) advise();
    return std::move(result_);
  }

  // The least memory of any plan on so many devices; nothing where the batch or the model does not fit them.
  std::optional<Rejection> least_memory(int devices) {
    nearest_.reset();
    candidates_.clear();
    enumerate(devices, false);
    if (candidates_.empty()) return nearest_;
    Rejection fits;
    fits.choice = candidates_.front().choice;
    return fits;
  }

 private:
  // Null, with why: the model cannot be cut so.
  const PlanModel* model_for(int tensor_ranks, int64_t micro_batch, std::string& why) {
    const auto [it, fresh] = models_.try_emplace({tensor_ranks, micro_batch});
    if (fresh) {
      try {
        it->second.first = request_.model(tensor_ranks, micro_batch);
      } catch (const InputError& error) {
        it->second.second = error.what();
      }
    }
    why = it->second.second;
    return it->second.first.layers.empty() ? nullptr : &it->second.first;
  }

  const LayerSeconds& seconds_for(const PlanModel& model, const PlanChoice& choice) {
    const std::tuple key{choice.tensor_ranks, choice.micro_batch_size, choice.activation};
    const auto it = seconds_.find(key);
    if (it != seconds_.end()) return it->second;
    return seconds_
        .emplace(key, layer_seconds(request_, model, choice.tensor_ranks, choice.activation, platform_))
        .first->second;
  }

  void reject(const PlanChoice& choice, RejectionKind kind, std::string reason) {
    Rejection r;
    r.choice = choice;
    r.kind = kind;
    r.reason = std::move(reason);
    result_.rejected.push_back(std::move(r));
  }

  void enumerate(int devices, bool report) {
    for (int tensor : request_.tensor_sizes) {
      if (devices % tensor != 0) continue;
      for (int stages : divisors(devices / tensor))
        for (int64_t b : request_.micro_batch_sizes) {
          PlanChoice grid;
          grid.stages = stages;
          grid.tensor_ranks = tensor;
          grid.replicas = devices / tensor / stages;
          grid.micro_batch_size = b;
          enumerate_grid(grid, report);
        }
    }
  }

  void enumerate_grid(PlanChoice grid, bool report) {
    const int64_t together = grid.micro_batch_size * grid.replicas;
    if (request_.global_batch_size % together != 0) {
      if (report)
        reject(grid, RejectionKind::kBatch,
               fmt::format("a batch of {} is no multiple of {} replicas x {} sequences",
                           request_.global_batch_size, grid.replicas, grid.micro_batch_size));
      return;
    }
    grid.micro_batches = static_cast<int>(request_.global_batch_size / together);
    std::string why;
    const PlanModel* model = model_for(grid.tensor_ranks, grid.micro_batch_size, why);
    if (!model || block_count(*model) < grid.stages) {
      if (report)
        reject(grid, RejectionKind::kShape,
               model ? fmt::format("{} blocks over {} stages", block_count(*model), grid.stages) : why);
      return;
    }
    for (const auto activation :
         {ActivationPolicy::kFullSave, ActivationPolicy::kSelective, ActivationPolicy::kCheckpoint})
      for (const int zero : {0, 1, 2, 3}) {
        if (zero > 0 && grid.replicas == 1) continue;
        PlanChoice choice = grid;
        choice.activation = activation;
        choice.zero_stage = zero;
        choice.shard_gradients = zero >= 2;
        for (const bool pipelined : {true, false})
          for (const bool ahead : {true, false}) {
            const bool recovers = activation != ActivationPolicy::kFullSave;
            if (ahead && !recovers) continue;
            choice.passes.clear();
            choice.recovery_buffers = ahead ? kRecoveryBuffers : 0;
            if (ahead) choice.passes.emplace_back("forward_side_recovery");
            if (pipelined) {
              choice.passes.emplace_back("layer_state_pipeline");
              choice.passes.emplace_back("update_prefetch");
            }
            choice.passes.insert(choice.passes.end(), request_.other_passes.begin(),
                                 request_.other_passes.end());
            enumerate_splits(choice, *model, report);
          }
      }
  }

  void enumerate_splits(PlanChoice choice, const PlanModel& model, bool report) {
    std::set<std::vector<int64_t>> splits = {even_stage_layers(block_count(model), choice.stages)};
    if (choice.stages > 1) {
      splits.insert(even_in_time(choice, model));
      splits.insert(even_in_memory(choice, model));
    }
    for (const auto& split : splits) {
      choice.stage_layers = split;
      offer(choice, model, report);
    }
  }

  std::vector<int64_t> even_in_time(const PlanChoice& choice, const PlanModel& model) {
    const LayerSeconds& s = seconds_for(model, choice);
    const size_t stages = static_cast<size_t>(choice.stages), head = model.layers.size() - 1;
    std::vector<double> base(stages), each(stages, s.forward[1] + s.backward[1] + s.recover[1]);
    base.front() += s.forward[0] + s.backward[0];
    base.back() += s.forward[head] + s.backward[head];
    each.back() -= s.recover[1];
    return balanced_stage_layers(block_count(model), base, each);
  }

  std::vector<int64_t> even_in_memory(PlanChoice choice, const PlanModel& model) {
    // What a stage needs with one block, and with two.
    const int64_t blocks = block_count(model);
    std::vector<double> base(static_cast<size_t>(choice.stages)), each(base.size());
    for (int s = 0; s < choice.stages; ++s) {
      PlanModel few;
      for (const int64_t count : {1, 2}) {
        choice.stage_layers.assign(base.size(), 1);
        choice.stage_layers[static_cast<size_t>(s)] = count;
        choice.stage_layers[static_cast<size_t>(s == 0 ? choice.stages - 1 : 0)] +=
            blocks - choice.stages - count + 1;
        if (choice.stage_layers[static_cast<size_t>(s == 0 ? choice.stages - 1 : 0)] < 1) continue;
        const auto bytes = static_cast<double>(least(choice, model, s));
        if (count == 1)
          base[static_cast<size_t>(s)] = bytes;
        else
          each[static_cast<size_t>(s)] = bytes - base[static_cast<size_t>(s)];
      }
      base[static_cast<size_t>(s)] -= each[static_cast<size_t>(s)];
    }
    return balanced_stage_layers(blocks, base, each);
  }

  // Problems are made once for each model, policy and state, and only their stages exchanged.
  int64_t least(const PlanChoice& choice, const PlanModel& model, int stage) {
    const std::tuple key{choice.tensor_ranks, choice.micro_batch_size, choice.activation};
    auto it = sketches_.find(key);
    if (it == sketches_.end()) {
      PlanChoice one = choice;
      one.stages = one.replicas = 1;
      one.passes.clear();
      one.stage_layers = {block_count(model)};
      it = sketches_.emplace(key, problem_of(request_, model, one, false)).first;
    }
    Problem& p = it->second;
    p.stages = choice.stages;
    p.replicas = choice.replicas;
    p.micro_batches = choice.micro_batches;
    p.zero_stage = choice.zero_stage;
    p.shard_gradients = choice.shard_gradients;
    p.first_layer = first_layers(choice.stage_layers);
    return least_stage_memory(p, stage);
  }

  void offer(const PlanChoice& choice, const PlanModel& model, bool report) {
    Rejection worst;
    for (int s = 0; s < choice.stages; ++s)
      if (const int64_t bytes = least(choice, model, s); bytes > worst.bytes) {
        worst.bytes = bytes;
        worst.stage = s;
      }
    if (worst.bytes > request_.memory_budget) {
      worst.choice = choice;
      worst.kind = RejectionKind::kMemory;
      worst.reason =
          "at least: " + describe_rank_bytes(choice, worst.stage, worst.bytes, request_.memory_budget);
      if (!nearest_ || worst.bytes < nearest_->bytes) nearest_ = worst;
      if (report) result_.rejected.push_back(std::move(worst));
      return;
    }
    Candidate candidate{choice, &model, nullptr, {}};
    if (report) {
      candidate.seconds = &seconds_for(model, choice);
      candidate.estimate = estimate_step(request_, model, choice, *candidate.seconds, platform_);
    }
    candidates_.push_back(std::move(candidate));
  }

  // Of the stages that the bound says are fullest, and of both ends.
  StageMemory fullest_stage_of(const Candidate& candidate, const Problem& problem) {
    std::vector<std::pair<int64_t, int>> stages;
    for (int s = 0; s < problem.stages; ++s)
      stages.emplace_back(-least(candidate.choice, *candidate.model, s), s);
    std::sort(stages.begin(), stages.end());
    std::set<int> asked = {0, problem.stages - 1};
    for (size_t i = 0; i < stages.size() && i < 3; ++i) asked.insert(stages[i].second);
    StageMemory worst;
    for (int s : asked)
      if (const StageMemory memory = stage_memory(problem, s); memory.total() > worst.total()) worst = memory;
    return worst;
  }

  // False: it does not fit after all, or cannot be folded; it is among the rejected then.
  bool simulate_one(const Candidate& candidate) {
    const Problem problem = problem_of(request_, *candidate.model, candidate.choice);
    if (const std::string why = why_not_foldable(problem, platform_); !why.empty()) {
      reject(candidate.choice, RejectionKind::kNotFolded, why);
      return false;
    }
    Plan plan;
    plan.memory = fullest_stage_of(candidate, problem);
    if (plan.memory.total() > request_.memory_budget) {
      Rejection r;
      r.choice = candidate.choice;
      r.kind = RejectionKind::kMemory;
      r.stage = plan.memory.stage;
      r.bytes = plan.memory.total();
      r.reason = describe_rank_bytes(r.choice, r.stage, r.bytes, request_.memory_budget);
      if (!nearest_ || r.bytes < nearest_->bytes) nearest_ = r;
      result_.rejected.push_back(std::move(r));
      return false;
    }
    const Prediction prediction = predict_step(problem, platform_);
    tasks_ += static_cast<int64_t>(prediction.graph.tasks.size());
    const StepAnalysis& step = prediction.step;
    plan.choice = candidate.choice;
    plan.parts = step;
    plan.bubble_ratio = step.bubble_ratio;
    plan.estimated_seconds = candidate.estimate.step_seconds;
    plan.tokens_per_second =
        static_cast<double>(request_.global_batch_size * request_.sequence_length) / step.step_seconds;
    result_.plans.push_back(std::move(plan));
    return true;
  }

  int64_t tasks_of(const Candidate& c) const {
    const int per_layer = c.choice.activation == ActivationPolicy::kFullSave ? 2 : 3;
    return static_cast<int64_t>(c.model->layers.size()) * c.choice.micro_batches *
           (per_layer + (c.choice.shard_gradients ? 2 : 0) + (c.choice.zero_stage == 3 ? 2 : 0));
  }

  void simulate_best() {
    std::stable_sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
      return a.estimate.step_seconds < b.estimate.step_seconds;
    });
    std::map<std::tuple<int, int, int64_t>, int> alike;
    std::set<std::tuple<int, int, int64_t, int, ActivationPolicy>> simulated;
    const Candidate* recovering = nullptr;
    std::vector<const Candidate*> left;
    for (const Candidate& candidate : candidates_) {
      const auto count = static_cast<int>(result_.plans.size());
      int& same =
          alike[{candidate.choice.stages, candidate.choice.tensor_ranks, candidate.choice.micro_batch_size}];
      const bool affordable = count < 2 || tasks_ + tasks_of(candidate) <= effort_.tasks;
      const std::tuple kind{candidate.choice.stages, candidate.choice.tensor_ranks,
                            candidate.choice.micro_batch_size, candidate.choice.zero_stage,
                            candidate.choice.activation};
      if (count >= effort_.plans || !affordable || same >= kSimulatedAlike || simulated.count(kind) > 0) {
        left.push_back(&candidate);
        continue;
      }
      if (!simulate_one(candidate)) continue;
      ++same;
      simulated.insert(kind);
      if (!recovering && candidate.choice.activation != ActivationPolicy::kFullSave) recovering = &candidate;
    }
    if (recovering) {
      Candidate keeping = *recovering;
      keeping.choice.activation = ActivationPolicy::kKeepWhatFits;
      simulate_one(keeping);
    }
    rank(left);
  }

  void rank(const std::vector<const Candidate*>& left) {
    auto& plans = result_.plans;
    if (plans.empty()) return;
    std::stable_sort(plans.begin(), plans.end(), [](const Plan& a, const Plan& b) {
      return a.parts.step_seconds < b.parts.step_seconds;
    });
    const Plan& best = plans.front();
    const auto slower = [&](const PlanChoice& choice, const StepParts& parts, bool simulated) {
      Rejection r;
      r.choice = choice;
      r.seconds = parts.step_seconds;
      r.simulated = simulated;
      const auto [part, excess] = costliest_part(parts, best.parts);
      r.part = part;
      r.reason =
          fmt::format("{} a step{}, against {}; its {} costs {} more", format_seconds(parts.step_seconds),
                      simulated ? "" : " by the closed form", format_seconds(best.parts.step_seconds), part,
                      format_seconds(std::max(excess, 0.0)));
      result_.rejected.push_back(std::move(r));
    };
    for (size_t i = 1; i < plans.size(); ++i) slower(plans[i].choice, plans[i].parts, true);
    for (const Candidate* candidate : left) slower(candidate->choice, candidate->estimate, false);
  }

  void advise() {
    if (!nearest_) {
      result_.advice =
          "no pipeline, data and tensor-parallel sizes fit the devices, the batch and the layers; change the "
          "number of devices or 'training.global_batch_size'";
      return;
    }
    measure_nearest();
    std::string text = fmt::format("a budget of {} would do for this plan",
                                   format_bytes(static_cast<double>(nearest_->bytes)));
    for (int factor = 2; factor <= kLargestFactor; factor *= 2) {
      Search larger(request_, platform_, effort_);
      const auto least = larger.least_memory(request_.devices * factor);
      if (!least || least->bytes > 0) continue;
      text += fmt::format("; so may {} devices (P{} D{} T{})", request_.devices * factor,
                          least->choice.stages, least->choice.replicas, least->choice.tensor_ranks);
      break;
    }
    result_.advice = text + "; a shorter sequence or less precise weights need less as well";
  }

  // What the plan that misses by least really needs, instead of the least that it could.
  void measure_nearest() {
    Rejection& r = *nearest_;
    std::string why;
    const PlanModel* model = model_for(r.choice.tensor_ranks, r.choice.micro_batch_size, why);
    const Problem problem = problem_of(request_, *model, r.choice);
    const StageMemory memory = fullest_stage_of({r.choice, model, nullptr, {}}, problem);
    r.bytes = memory.total();
    r.stage = memory.stage;
    r.reason = describe_rank_bytes(r.choice, r.stage, r.bytes, request_.memory_budget);
    result_.nearest = r;
  }

  const PlanRequest& request_;
  const Platform& platform_;
  const PlanEffort effort_;
  std::map<std::pair<int, int64_t>, std::pair<PlanModel, std::string>> models_;  // by T and b; or why not
  std::map<std::tuple<int, int64_t, ActivationPolicy>, LayerSeconds> seconds_;
  std::map<std::tuple<int, int64_t, ActivationPolicy>, Problem> sketches_;
  std::vector<Candidate> candidates_;
  std::optional<Rejection> nearest_;
  int64_t tasks_ = 0;
  PlanSearch result_;
};

}  // namespace

const char* name_of(RejectionKind kind) {
  switch (kind) {
    case RejectionKind::kShape:
      return "shape";
    case RejectionKind::kBatch:
      return "batch";
    case RejectionKind::kMemory:
      return "memory";
    case RejectionKind::kNotFolded:
      return "not_folded";
    case RejectionKind::kSlower:
      return "slower";
  }
  return "";
}

PlanSearch search_plans(const PlanRequest& request, const Platform& platform, const PlanEffort& effort) {
  return Search(request, platform, effort).run();
}

Plan cost_plan(const PlanRequest& request, const Platform& platform, const PlanChoice& choice) {
  const PlanModel model = request.model(choice.tensor_ranks, choice.micro_batch_size);
  const Problem problem = problem_of(request, model, choice);
  if (const std::string why = why_not_foldable(problem, platform); !why.empty()) input_error("{}", why);
  Plan plan;
  plan.choice = choice;
  plan.memory = fullest_stage(problem);
  const StepAnalysis step = predict_step(problem, platform).step;
  plan.parts = step;
  plan.bubble_ratio = step.bubble_ratio;
  plan.tokens_per_second =
      static_cast<double>(request.global_batch_size * request.sequence_length) / step.step_seconds;
  return plan;
}

}  // namespace trainer
