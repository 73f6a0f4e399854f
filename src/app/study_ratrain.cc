#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "app/ratrain_case.h"
#include "app/study.h"
#include "base/units.h"
#include "plan/planner.h"

namespace trainer {
namespace {

using Method = RatrainMethod;
constexpr const char *kSeven = "llama-2-7b", *kThirteen = "baichuan2-13b", *kThirtyTwo = "qwen2.5-32b",
                     *kSeventy = "llama-2-70b";
// Of the tables of chosen plans; less than `trainer plan` takes.
constexpr PlanEffort kEffort{.plans = 3, .tasks = 60'000};

struct Row {
  const char* name;
  RatrainCase plan;
  double memory = 0, seconds = 0;  // published, GiB and s; 0: not
  const char* note = "";           // where its memory is explained by no model of ours
};

const char* kUnexplained = "fits neither 2 + 14/D nor 16/D bytes a parameter; unexplained";

std::vector<Row> table_2() {
  return {
      {"13B RATrain", {kThirteen, 2, 128, 1, 2, 32, Method::kFull}, 15.84, 688.09},
      {"13B TP-heavy", {kThirteen, 2, 64, 2, 2, 64, Method::kFull}, 16.51, 826.53, kUnexplained},
      {"13B ZeRO-3-heavy", {kThirteen, 2, 128, 1, 2, 32, Method::kGatheredOnce}, 14.73, 717.93, kUnexplained},
      {"13B backward checkpointing",
       {kThirteen, 2, 128, 1, 2, 32, Method::kBackwardCheckpoint},
       15.73,
       937.04},
      {"13B tuned PP/DP/ZeRO", {kThirteen, 2, 128, 1, 2, 32, Method::kTuned}, 15.73, 945.84},
      {"32B RATrain", {kThirtyTwo, 8, 32, 1, 2, 128, Method::kFull}, 14.71, 1592.51},
      {"32B TP-heavy", {kThirtyTwo, 8, 16, 2, 2, 256, Method::kFull}, 19.45, 1922.66, kUnexplained},
      {"32B ZeRO-3-heavy",
       {kThirtyTwo, 8, 32, 1, 2, 128, Method::kGatheredOnce},
       16.54,
       1798.78,
       kUnexplained},
      {"32B backward checkpointing",
       {kThirtyTwo, 8, 32, 1, 2, 128, Method::kBackwardCheckpoint},
       14.50,
       2162.54},
      {"32B tuned PP/DP/ZeRO", {kThirtyTwo, 8, 32, 1, 2, 128, Method::kTuned}, 14.50, 2167.81}};
}

std::vector<Row> table_3() {
  return {{"7B on 8", {kSeven, 2, 4, 1, 2, 128, Method::kFull}, 19.57, 1304.13},
          {"13B on 16", {kThirteen, 8, 2, 1, 2, 128, Method::kFull}, 19.06, 743.15},
          {"32B on 64", {kThirtyTwo, 16, 4, 1, 2, 128, Method::kFull}, 18.14, 873.85},
          {"70B on 96", {kSeventy, 48, 2, 1, 2, 16, Method::kFull}, 19.46, 281.32}};
}

// Table 6 gives eight sequences of 7B to each cluster, and no plan: one without a pipeline, in micro-batches
// of as many sequences as fit 20 GiB.
RatrainCase throughput_plan(int clusters) {
  constexpr int kMicroBatch = 4;
  return {kSeven, 1, clusters, 1, 2, 8 / kMicroBatch, Method::kFull, kMicroBatch};
}

std::vector<Row> table_4() {
  return {{"7B on 256, batch 2,048", throughput_plan(256), 0, 144.28},
          {"32B on 256, batch 1,024 inferred", {kThirtyTwo, 8, 32, 1, 2, 32, Method::kFull}, 0, 455.21}};
}

std::vector<Row> table_6() {
  return {{"256 clusters", throughput_plan(256), 0, 144.28},
          {"512 clusters", throughput_plan(512), 0, 145.75},
          {"768 clusters", throughput_plan(768), 0, 147.23},
          {"1,024 clusters", throughput_plan(1024), 0, 148.75}};
}

class RatrainStudy {
 public:
  explicit RatrainStudy(const std::string& configs)
      : model_(configs), with_(read_platform("mt3000", configs + "/platforms")), without_(with_) {
    with_.recovery_has_its_own_lane = true;
    without_.recovery_has_its_own_lane = false;
  }

  Study make() {
    study_.title = "RATrain: published figures and ours";
    memory_rows("Peak memory, table 2", table_2());
    memory_rows("Peak memory, table 3", table_3());
    full_save_rows();
    for (const bool own_lane : {true, false}) {
      step_rows("Step time, table 2", table_2(), own_lane);
      step_rows("Step time, table 3", table_3(), own_lane);
      step_rows("Step time, table 4", table_4(), own_lane);
      step_rows("Step time, table 6", table_6(), own_lane);
      summary_row(own_lane);
      order_rows(own_lane);
      ablation_rows(kThirtyTwo, 8, 32, 128, own_lane, true);
    }
    scaling_rows();
    for (const auto& [name, stages, replicas] :
         {std::tuple{kSeven, 2, 128}, {kThirteen, 2, 128}, {kSeventy, 32, 8}})
      ablation_rows(name, stages, replicas, 32, true, false);
    planned_rows();
    assumptions();
    return std::move(study_);
  }

 private:
  void add(const std::string& table, const std::string& row, StudyValue published, StudyValue ours,
           StudyError measure, const std::string& unit, const std::string& why = "") {
    add_row(study_, table, row, std::move(published), std::move(ours), measure, unit, why);
  }
  static std::string lane(bool own) { return own ? ", recovery on its own lane" : ", one compute lane"; }
  const Platform& platform(bool own_lane) const { return own_lane ? with_ : without_; }

  void memory_rows(const std::string& table, const std::vector<Row>& rows) {
    for (const Row& row : rows) {
      const double ours = static_cast<double>(model_.memory(row.plan).in_use()) / kGiB;
      add(table, row.name, row.memory, ours, StudyError::kRelative, "GiB", row.note);
      if (*row.note == 0) memory_errors_.push_back(std::abs(ours / row.memory - 1));
    }
  }

  void full_save_rows() {
    for (RatrainCase c : {RatrainCase{kThirteen, 2, 128, 1, 2, 32}, {kThirtyTwo, 8, 32, 1, 2, 128}}) {
      c.method = Method::kFullSave;
      const auto bytes = static_cast<double>(model_.memory(c).in_use());
      add("Full save", fmt::format("{} fits 20 GiB", c.model), std::string("no"),
          std::string(bytes <= 20 * kGiB ? "yes" : "no"), StudyError::kEqual, "");
      add("Full save", fmt::format("{} needs", c.model), {}, bytes / kGiB, StudyError::kRelative, "GiB");
    }
    const auto [mean, worst] = mean_and_worst(memory_errors_);
    add("Full save", "mean error of memory, T=1 and Z=2 rows", {}, 100 * mean, StudyError::kRelative, "%");
    add("Full save", "worst error of memory, T=1 and Z=2 rows", {}, 100 * worst, StudyError::kRelative, "%");
  }

  static std::pair<double, double> mean_and_worst(const std::vector<double>& errors) {
    double sum = 0, worst = 0;
    for (double e : errors) {
      sum += e;
      worst = std::max(worst, e);
    }
    return {sum / static_cast<double>(errors.size()), worst};
  }

  double seconds(const RatrainCase& c, bool own_lane) {
    return model_.step(c, platform(own_lane)).step_seconds;
  }

  void step_rows(const std::string& table, const std::vector<Row>& rows, bool own_lane) {
    const bool counts = table != "Step time, table 3";
    for (const Row& row : rows) {
      const double ours = seconds(row.plan, own_lane);
      add(table + lane(own_lane), row.name, row.seconds, ours, StudyError::kRelative, "s");
      by_name_[own_lane][row.name] = ours;
      // A plan that stands in two tables counts once.
      const bool fresh = std::find(counted_[own_lane].begin(), counted_[own_lane].end(), row.plan) ==
                         counted_[own_lane].end();
      if (!counts || !fresh) continue;
      counted_[own_lane].push_back(row.plan);
      errors_[own_lane].push_back(std::abs(ours / row.seconds - 1));
    }
  }

  void summary_row(bool own_lane) {
    const auto [mean, worst] = mean_and_worst(errors_[own_lane]);
    const std::string table = "Step time, summary" + lane(own_lane);
    add(table, "mean error, plans of tables 2, 4 and 6", {}, 100 * mean, StudyError::kRelative, "%");
    add(table, "worst error, plans of tables 2, 4 and 6", {}, 100 * worst, StudyError::kRelative, "%");
  }

  void order_rows(bool own_lane) {
    for (const char* size : {"13B", "32B"}) {
      std::vector<std::pair<double, std::string>> published, ours;
      for (const Row& row : table_2())
        if (std::string(row.name).starts_with(size)) {
          published.emplace_back(row.seconds, std::string(row.name).substr(4));
          ours.emplace_back(by_name_[own_lane].at(row.name), std::string(row.name).substr(4));
        }
      const auto text = [](auto list) {
        std::sort(list.begin(), list.end());
        std::string joined;
        for (const auto& [seconds, name] : list) joined += (joined.empty() ? "" : " < ") + name;
        return joined;
      };
      add("Order of the methods" + lane(own_lane), size, text(published), text(ours), StudyError::kEqual, "",
          "");
    }
  }

  // With figures to compare where `published`.
  void ablation_rows(const char* model, int stages, int replicas, int micro_batches, bool own_lane,
                     bool published) {
    const std::string table = fmt::format("Ablation, {} P{} D{}{}", model, stages, replicas, lane(own_lane));
    const auto analyse = [&](Method method) {
      return model_.step({model, stages, replicas, 1, 2, micro_batches, method}, platform(own_lane));
    };
    const auto theirs = [&](double value) { return published ? StudyValue(value) : StudyValue(); };
    const auto tail = [](const StepAnalysis& s) { return s.communication + s.update + s.prefetch; };
    const StepAnalysis full = analyse(Method::kFull);
    add(table, "full, step", theirs(1790.13), full.step_seconds, StudyError::kRelative, "s",
        "the same plan is 1592.51 s in table 2; unexplained");
    add(table, "full, tail", theirs(14.69), tail(full), StudyError::kRelative, "s",
        "14.69 s would need links some ten times slower than stated");
    for (const auto& [name, method, step, tails] :
         {std::tuple{"without forward-side recovery", Method::kNoRecoveryAhead, 1.33, 0.0},
          {"without update-prefetch", Method::kNoUpdatePrefetch, 1.01, 2.31},
          {"without layer-state pipeline", Method::kNoLayerStatePipeline, 1.03, 4.59}}) {
      const StepAnalysis s = analyse(method);
      add(table, fmt::format("{}, step over full", name), theirs(step), s.step_seconds / full.step_seconds,
          StudyError::kDifference, "");
      if (tails > 0)
        add(table, fmt::format("{}, tail over full", name), theirs(tails), tail(s) / tail(full),
            StudyError::kRelative, "",
            method == Method::kNoLayerStatePipeline
                ? "their tail without it holds more than sum, update and gather at the stated link rate"
                : "");
    }
  }

  void scaling_rows() {
    const double base = by_name_[true].at("256 clusters");
    const std::string table = "Weak scaling of 7B, by contention of collectives";
    for (const auto& [name, published] :
         {std::pair{"512 clusters", 99.0}, {"768 clusters", 98.0}, {"1,024 clusters", 97.0}})
      add(table, name, published, 100 * base / by_name_[true].at(name), StudyError::kDifference, "%");
    Platform free = with_;
    free.collective_slowdown_per_device = 0;
    const auto rows = table_6();
    add(table, "1,024 clusters, without the contention", {},
        100 * model_.step(rows.front().plan, free).step_seconds /
            model_.step(rows.back().plan, free).step_seconds,
        StudyError::kDifference, "%");
    // Strong scaling: 32B, batch 1,024.
    double first = 0;
    for (const int replicas : {16, 32, 64, 128}) {
      const RatrainCase c{kThirtyTwo, 8, replicas, 1, 2, 1024 / replicas};
      const double s = seconds(c, true);
      if (first == 0) first = s * c.clusters();
      StudyValue published;
      if (replicas == 32) published = 455.21;
      if (replicas == 64) published = 231.36;
      add("Strong scaling of 32B, batch 1,024, P8", fmt::format("{} clusters", c.clusters()), published, s,
          StudyError::kRelative, "s",
          "table 4 has 231.36 s at 512 clusters and 455.21 s at 256, without more bubble at half the "
          "micro-batches, so its plan or batch differs; unexplained");
      add("Strong scaling of 32B, batch 1,024, P8", fmt::format("{} clusters, efficiency", c.clusters()), {},
          100 * first / (s * c.clusters()), StudyError::kDifference, "%");
    }
  }

  // What the planner chooses; ours alone.
  void planned_rows() {
    for (const int64_t gib : {15, 20, 30})
      for (const char* name : {kSeven, kThirteen, kThirtyTwo, kSeventy})
        planned(fmt::format("Memory budget {} GiB, 256 clusters, batch 2,048", gib), name, 256, 2048, with_,
                gib << 30);
    const Platform h200 = read_platform("h200", model_.configs() + "/platforms");
    for (const char* name : {kSeven, kThirteen, kThirtyTwo, kSeventy})
      planned("Another platform: 64 H200, batch 2,048", name, 64, 2048, h200, h200.memory_bytes);
  }

  void planned(const std::string& table, const std::string& name, int devices, int64_t batch,
               const Platform& platform, int64_t budget) {
    const PlanSearch search = search_plans(model_.request(name, devices, batch, budget), platform, kEffort);
    if (search.plans.empty()) {
      add_row(study_, table, name, {}, std::string("nothing fits"), StudyError::kEqual).note =
          search.nearest ? search.nearest->reason : search.advice;
      return;
    }
    const Plan& best = search.plans.front();
    add(table, fmt::format("{}: {}", name, describe(best.choice)), {}, best.parts.step_seconds,
        StudyError::kRelative, "s");
    std::map<std::string, int> lost;
    for (const Rejection& r : search.rejected)
      ++lost[r.kind == RejectionKind::kSlower ? "slower by its " + r.part : name_of(r.kind)];
    std::string text;
    for (const auto& [why, count] : lost)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, why);
    add(table, name + ": rejected", {}, text, StudyError::kEqual, "");
  }

  void assumptions() {
    study_.assumptions = {
        fmt::format(
            "Chosen plans: the best of at most {} simulated ones, their programs of {} tasks together; "
            "'trainer plan' simulates {} unless told otherwise.",
            kEffort.plans, kEffort.tasks, PlanEffort{}.plans),
        "Memory is in GiB, and is what is in use when each tier is fullest; the published unit is not stated "
        "beyond GB.",
        "Memory: weights and gradients of two bytes, gradients in shards while they accumulate, which is 2 + "
        "14/D bytes a parameter. Time: gradients summed once a step, as the layer-state pipeline has it. No "
        "one plan has both.",
        "Stages are even in time, and even in memory where those do not fit 20 GiB; the last stage keeps "
        "its activations where that makes it no fuller than the fullest other one.",
        "One sequence of 2,048 tokens a micro-batch; tables 2 and 6 state the batch. Table 6 has no plan: "
        "ours is "
        "one stage with micro-batches of four sequences, the largest that fit 20 GiB.",
        "ZeRO-3-heavy: its published peaks leave no room for giving weights back within a step, so its "
        "weights are "
        "gathered once a step, and the step waits for all of them.",
        "Constants of configs/platforms/mt3000.json fitted on three rows: the share of the matmul rate, so "
        "that "
        "table 6's 1,024 clusters and table 2's 32B RATrain err by about as much in opposite directions; the "
        "slowdown "
        "of collectives by contention, on table 6's 1,024 clusters; the rate of exchanges within layers, on "
        "table "
        "2's 13B TP-heavy. Products and memory traffic of a layer add up. The share of the memory bandwidth "
        "was "
        "chosen with the tails of the ablation in view, and recovery runs at 0.6 of the products' share, so "
        "that "
        "recovering a block costs about a third of its forward and backward: assumptions.",
        "The fit is not blind: some fifteen settings of constants and several models (products hiding memory "
        "traffic or "
        "not, table 6 in two stages, ZeRO-3 gathering for every use) were compared with all tables before "
        "these were "
        "chosen. The errors are those of a chosen fit, not of a prediction.",
        "Baichuan2-13B's ALiBi costs what rotary positions cost here.",
        "Recovery on its own lane: nothing in the text names the units it would run on; with one compute "
        "lane "
        "the gain of recovering ahead is bounded by the idle time, so those tables show what the constants "
        "give without the assumption.",
        "Tail: what a step takes longer than its main path by communication, update and prefetch."};
  }

  RatrainModel model_;
  Platform with_, without_;
  Study study_;
  std::vector<double> memory_errors_;
  std::map<bool, std::vector<double>> errors_;
  std::map<bool, std::vector<RatrainCase>> counted_;  // the plans that errors_ are of
  std::map<bool, std::map<std::string, double>> by_name_;
};

}  // namespace

Study ratrain_study() { return RatrainStudy("configs").make(); }

}  // namespace trainer
