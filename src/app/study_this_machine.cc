// Step times of real runs on this machine beside those that the simulator predicts from a profile of it.
#include <fmt/core.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "app/machine_runs.h"
#include "app/study.h"
#include "base/error.h"
#include "base/statistics.h"

namespace trainer {
namespace {

constexpr int kProfiledSteps = 2;          // of each of the two profiles of a run
constexpr double kLeastDifference = 0.05;  // of pairs whose order counts
constexpr const char* kSlowLink = "400mbit";

constexpr const char* kConfig = R"({
  "model": {"architecture": "llama", "num_layers": 8, "hidden_size": 192, "ffn_hidden_size": 512,
            "num_attention_heads": 3, "vocabulary_size": 2048, "max_position_embeddings": 128},
  "data": {"data_path": "synthetic", "sequence_length": 128},
  "training": {"steps": 1, "micro_batch_size": 1, "global_batch_size": 8, "seed": 3},
  "precision": {"compute": "fp32"},
  "optimizer": {"lr": 1e-3, "lr_decay_style": "constant"},
  "checkpoint": {"save_at_end": false},
  "run": {"directory": "run", "tensorboard": false, "progress": "line"}
}
)";

struct MachinePlan {
  const char* name;
  std::vector<std::string> settings;
};

struct Setting {
  const char* name;
  Launch launch;
  std::vector<MachinePlan> plans;
};

std::vector<Setting> settings() {
  const auto micro_batch = [](int b) { return fmt::format("training.micro_batch_size={}", b); };
  const std::string two_stages = "parallel.pipeline_parallel_size=2",
                    recompute = "schedule.activation=checkpoint",
                    all_stages = "schedule.last_stage_keeps=false", no_passes = "schedule.passes=[]",
                    in_line = "schedule.passes=[\"layer_state_pipeline\",\"update_prefetch\"]",
                    sharded = "parallel.zero_stage=1", uneven = "parallel.stage_layers=[6,2]";
  return {
      {"One rank, all cores",
       {.ranks = 1, .slow_link = {}},
       {{"b = 1", {micro_batch(1)}},
        {"b = 4", {micro_batch(4)}},
        {"b = 4, no passes", {micro_batch(4), no_passes}},
        {"b = 2, checkpoint", {micro_batch(2), recompute, all_stages}}}},
      {"Two ranks, shared memory",
       {.ranks = 2, .slow_link = {}},
       {{"P = 2, b = 1, M = 8", {two_stages, micro_batch(1)}},
        {"P = 2, b = 2, M = 4", {two_stages, micro_batch(2)}},
        {"P = 2, b = 4, M = 2", {two_stages, micro_batch(4)}},
        {"P = 2, b = 2, layers 6 + 2", {two_stages, micro_batch(2), uneven}},
        {"P = 2, b = 2, no passes", {two_stages, micro_batch(2), no_passes}},
        {"P = 2, b = 1, checkpoint, recovery in gaps", {two_stages, micro_batch(1), recompute}},
        {"P = 2, b = 1, checkpoint, recovery in line", {two_stages, micro_batch(1), recompute, in_line}},
        {"P = 2, b = 2, checkpoint on both stages", {two_stages, micro_batch(2), recompute, all_stages}},
        {"D = 2, b = 1, M = 4", {micro_batch(1)}},
        {"D = 2, b = 4, M = 1", {micro_batch(4)}},
        {"D = 2, b = 2, no passes", {micro_batch(2), no_passes}},
        {"D = 2, b = 2, ZeRO 1", {micro_batch(2), sharded}}}},
      {"Two ranks, slow link",
       {.ranks = 2, .slow_link = kSlowLink},
       {{"P = 2, b = 1, M = 8", {two_stages, micro_batch(1)}},
        {"P = 2, b = 2, M = 4", {two_stages, micro_batch(2)}},
        {"D = 2, b = 2, M = 2", {micro_batch(2)}},
        {"D = 2, b = 2, no passes", {micro_batch(2), no_passes}}}},
  };
}

// A folder that is gone afterwards.
class WorkFolder {
 public:
  WorkFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "trainer_study.XXXXXX").string();
    if (!mkdtemp(name.data())) run_error("cannot make a folder like {}", name);
    path_ = name;
  }
  ~WorkFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

Study this_machine_study(int rounds) {
  const WorkFolder work;
  MachineRuns runs(work.path(), kConfig);
  Study study;
  study.title = "This machine: predicted and measured steps";
  study.assumptions.push_back(fmt::format(
      "'Published' is the measured step, the median over {} rounds of the median of a round's steps. "
      "The error is the median over the rounds of a round's predicted over its measured step, less 1; 'ours' "
      "is the "
      "measured step with that error. A plan is predicted from profiles of its layers right before and right "
      "after each of its runs, in pipelines for plans of several stages, else in one stage on each rank.",
      rounds));
  std::vector<Setting> possible;
  for (Setting& setting : settings()) {
    std::string why;
    if (runs.possible(setting.launch, why))
      possible.push_back(std::move(setting));
    else
      study.assumptions.push_back(fmt::format("Skipped: {}: {}.", setting.name, why));
  }
  std::vector<double> all_measured, all_predicted;
  for (const Setting& setting : possible) {
    std::vector<std::vector<std::string>> plans;
    for (const MachinePlan& plan : setting.plans) plans.push_back(plan.settings);
    fmt::print(stderr, "{}: {} plans, {} rounds\n", setting.name, plans.size(), rounds);
    const std::vector<PlanRun> checked = runs.check(setting.launch, plans, kProfiledSteps, rounds);
    for (size_t i = 0; i < plans.size(); ++i) {
      all_measured.push_back(checked[i].step_seconds);
      all_predicted.push_back(checked[i].step_seconds * (1 + checked[i].error));
      add_row(study, setting.name, setting.plans[i].name, all_measured.back(), all_predicted.back(),
              StudyError::kRelative, "s");
    }
  }
  const Agreement a = agreement_of(all_predicted, all_measured, kLeastDifference);
  const auto summary = [&](const char* name, double value, const char* unit) {
    add_row(study, "Agreement", name, {}, value, StudyError::kDifference, unit);
  };
  summary("mean error", 100 * a.mean_error, "%");
  summary("worst error", 100 * a.worst_error, "%");
  summary("Kendall's tau over pairs at least 5 % apart", a.kendall_tau, "");
  summary("such pairs", a.pairs, "");
  return study;
}

}  // namespace trainer
