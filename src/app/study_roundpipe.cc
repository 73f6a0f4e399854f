#include <fmt/core.h>

#include <cmath>

#include "app/study.h"
#include "plan/roundpipe_published.h"

namespace trainer {
namespace {

constexpr int kDevices = kRoundPipeDevices, kMicroBatches = kRoundPipeMicroBatches;

StudyRow number(std::string table, std::string row, StudyValue published, double ours, StudyError measure,
                std::string unit) {
  StudyRow r;
  r.table = std::move(table);
  r.row = std::move(row);
  r.published = std::move(published);
  r.ours = ours;
  r.measure = measure;
  r.unit = std::move(unit);
  return r;
}

// "7x4": four stages of seven layers.
std::string text_of(const std::vector<int>& forward, const std::vector<int>& backward) {
  std::string text;
  const auto add = [&](const std::vector<int>& counts) {
    for (size_t i = 0, run; i < counts.size(); i += run) {
      for (run = 1; i + run < counts.size() && counts[i + run] == counts[i];) ++run;
      if (i > 0) text += ",";
      text += run > 1 ? fmt::format("{}x{}", counts[i], run) : fmt::format("{}", counts[i]);
    }
  };
  add(forward);
  text += "; ";
  add(backward);
  return text;
}

void roundpipe_bubble_rows(Study& study) {
  RoundRobinTiming published_rule;
  published_rule.fused_forward_waits = false;
  for (const RoundPipePublished& p : roundpipe_published()) {
    const auto add = [&](const char* schedule, double published, double share) {
      study.rows.push_back(number("Bubble, 8 devices, 16 micro-batches",
                                  fmt::format("{}, {}", p.name, schedule), published, 100 * share,
                                  StudyError::kDifference, "%"));
    };
    const auto bubble = [&](PipelineSchedule schedule, const std::vector<int>& stages) {
      return time_pipeline(p.model, schedule, stages, kDevices, kMicroBatches).bubble();
    };
    add("1F1B", p.one_f_one_b, bubble(PipelineSchedule::kOneFOneB, p.pipeline));
    add("GPipe", p.gpipe, bubble(PipelineSchedule::kGpipe, p.pipeline));
    add("interleaved 1F1B", p.interleaved, bubble(PipelineSchedule::kInterleaved1F1B, p.looped));
    add("Looped-BFS", p.looped_bfs, bubble(PipelineSchedule::kLoopedBfs, p.looped));
    const ScheduleTimes t =
        time_round_robin(p.model, p.forward, p.backward_with_head(), kDevices, kMicroBatches, published_rule);
    add("RoundPipe, synchronous", p.sync, t.bubble());
    add("RoundPipe, asynchronous", p.async, t.inner_bubble());
  }
}

void makespan_rows(Study& study) {
  RoundRobinTiming published_rule;
  published_rule.fused_forward_waits = false;
  for (const RoundPipePublished& p : roundpipe_published())
    study.rows.push_back(number(
        "RoundPipe's step", p.name, p.makespan,
        time_round_robin(p.model, p.forward, p.backward_with_head(), kDevices, kMicroBatches, published_rule)
            .makespan,
        StudyError::kRelative, "ms"));
}

void waiting_rows(Study& study) {
  const std::string table = "RoundPipe as a program that can run: the head waits for its input";
  for (const RoundPipePublished& p : roundpipe_published()) {
    const auto backward = p.backward_with_head();
    const ScheduleTimes t = time_round_robin(p.model, p.forward, backward, kDevices, kMicroBatches);
    StudyRow sync = number(table, fmt::format("{}, synchronous bubble", p.name), p.sync, 100 * t.bubble(),
                           StudyError::kDifference, "%");
    if (std::abs(*sync.error()) > 0.02)
      sync.note =
          "the published simulation lets the head's forward begin before its input has come; where the head "
          "is the "
          "slowest stage, that hides one head forward a round";
    study.rows.push_back(std::move(sync));
    const double steady =
        steady_step_seconds(p.model, p.forward, backward, kDevices, kMicroBatches, /*delayed=*/true);
    StudyRow async = number(table, fmt::format("{}, bubble of asynchronous steps in a row", p.name), p.async,
                            100 * (1 - t.busy / (kDevices * steady)), StudyError::kDifference, "%");
    async.note =
        "published: one step's bubble less its fill and drain; ours: steps simulated behind each other, in "
        "which "
        "the fill of one does not fit exactly into the drain of the other";
    study.rows.push_back(std::move(async));
  }
}

void partition_rows(Study& study, PartitionObjective objective) {
  for (const RoundPipePublished& p : roundpipe_published()) {
    PartitionProblem problem = partition_problem(p.model, kDevices, kMicroBatches);
    const auto theirs = p.backward_with_head();
    const double slowest = slowest_stage(problem, p.forward, theirs);
    const int stages = static_cast<int>(p.forward.size() + theirs.size());
    problem.objective = objective;
    const StagePartition ours = partition_stages(problem);
    const bool code = objective == PartitionObjective::kSlowestLayer;
    const std::string table =
        code ? "Partitions, objective of the published code" : "Partitions, objective of the paper";
    StudyRow row;
    row.table = table;
    row.row = fmt::format("{}, forward; backward", p.name);
    row.published = text_of(p.forward, theirs);
    row.ours = text_of(ours.forward, ours.backward);
    row.measure = StudyError::kEqual;
    const double step =
        time_round_robin(p.model, ours.forward, ours.backward, kDevices, kMicroBatches).makespan;
    const double their_step = time_round_robin(p.model, p.forward, theirs, kDevices, kMicroBatches).makespan;
    if (*row.error() != 0)
      row.note = fmt::format(
          "ours has {} stages instead of {}, the slowest of {:.2f} ms instead of {:.2f}: a lower "
          "objective; its "
          "simulated step takes {:.1f} ms, that of the published partition {:.1f}",
          ours.stages(), stages, ours.slowest, slowest, step, their_step);
    study.rows.push_back(std::move(row));
    study.rows.push_back(number(table, fmt::format("{}, objective", p.name),
                                partition_objective(problem, stages, slowest), ours.objective,
                                StudyError::kRelative, "ms"));
  }
}

}  // namespace

Study roundpipe_study() {
  Study study;
  study.title = "RoundPipe";
  roundpipe_bubble_rows(study);
  makespan_rows(study);
  waiting_rows(study);
  partition_rows(study, PartitionObjective::kSlowestLayer);
  partition_rows(study, PartitionObjective::kStepTime);
  study.assumptions = {
      "Times of layers, head and hops and the baselines' partitions are those of the paper's artifact (arXiv "
      "2604.27085); every figure of ours comes from a step graph of the schedule's front end, simulated.",
      "A hop costs only between different devices and occupies neither. Optimizer, weight and gradient "
      "copies cost "
      "nothing.",
      "Every block is recomputed, the head never. In RoundPipe's backward stages recomputation may begin "
      "before the "
      "gradient has come; in the other schedules it begins with the gradient.",
      "RoundPipe's rounds have 8 micro-batches; the counter of devices runs on from round to round.",
      "The first two tables follow the published simulation in letting the forward of the fused stage begin "
      "before "
      "its input has come. No program can do so; the third table has the same figures without that.",
      "Asynchronous, in the first table: the bubble less fill and drain, as published."};
  return study;
}

}  // namespace trainer
