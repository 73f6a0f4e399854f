#include "app/profile_check.h"

#include <map>

#include "app/plan_request.h"
#include "base/json.h"
#include "base/log.h"
#include "base/statistics.h"
#include "sim/predict.h"

namespace trainer {
namespace {

bool is_pipelined(const ProfileSubject& subject) {
  return subject.config.parallel.pipeline_parallel_size > 1;
}

// Plans whose layers have the same shapes and threads, all of them in pipelines or none.
std::vector<std::vector<size_t>> plans_by_layers(const std::vector<ProfileSubject>& subjects) {
  std::map<std::pair<std::vector<LayerShape>, int64_t>, std::vector<size_t>> by_shapes;
  for (size_t i = 0; i < subjects.size(); ++i) {
    const Config& c = subjects[i].config;
    const Model model(subjects[i].model, c.data.sequence_length);
    std::vector<LayerShape> shapes;
    for (const int layer : {0, 1, model.layer_count() - 1})
      shapes.push_back(shape_of(model.layer(layer).catalogue(c.training.micro_batch_size,
                                                             c.data.sequence_length, c.precision.compute),
                                static_cast<int64_t>(size_of(c.precision.compute)),
                                is_pipelined(subjects[i])));
    by_shapes[{shapes, c.device.threads}].push_back(i);
  }
  std::vector<std::vector<size_t>> groups;
  for (auto& [key, group] : by_shapes) groups.push_back(std::move(group));
  return groups;
}

}  // namespace

double CheckedPlan::step_seconds() const { return median(measured_seconds); }

double CheckedPlan::error() const {
  std::vector<double> ratios;
  for (size_t r = 0; r < measured_seconds.size(); ++r)
    ratios.push_back(predicted_seconds[r] / measured_seconds[r]);
  return median(std::move(ratios)) - 1;
}

std::vector<CheckedPlan> check_profile(const MachineProfiler& profiler, Communicator& world,
                                       const std::vector<std::string>& files,
                                       const std::vector<ProfileSubject>& subjects,
                                       const std::vector<TrainingData>& data, const VariantSteps& steps,
                                       int rounds) {
  const auto groups = plans_by_layers(subjects);
  std::vector<CheckedPlan> plans(files.size());
  for (size_t i = 0; i < files.size(); ++i) plans[i].config = files[i];
  for (int round = 0; round < rounds; ++round) {
    const MachineProfile links = profiler.measure_links();
    for (size_t g = 0; g < groups.size(); ++g) {
      // Each round begins with another group, and each group with another plan.
      const auto& group = groups[(g + static_cast<size_t>(round)) % groups.size()];
      const auto measure_platform = [&] {
        MachineProfile profile = links;
        const ProfileSubject& s = subjects[group.front()];
        profiler.measure_layers(s, is_pipelined(s) ? profiled_stages(world.size(), s.model) : 1, profile);
        return to_platform(profile);
      };
      // A machine that shares its cores changes its pace from one second to the next: the profiles of a plan
      // stand right before it and right after it, and all of them are short.
      Platform before = measure_platform();
      for (size_t k = 0; k < group.size(); ++k) {
        const size_t i = group[(k + static_cast<size_t>(round)) % group.size()];
        AblationResult result;
        result.variant.config = subjects[i].config;
        run_variant(data[i], world, steps, result);
        Platform after = measure_platform();
        if (world.rank() == 0) {
          const Problem problem = planned_problem(subjects[i].config, subjects[i].model, world.size());
          const auto predicted = [&](const Platform& platform) {
            return predict_step(problem, platform).step.step_seconds;
          };
          plans[i].measured_seconds.push_back(result.rounds.front().step_seconds);
          plans[i].predicted_seconds.push_back((predicted(before) + predicted(after)) / 2);
          log_info("round {} of {}: {}: measured {:.1f} ms a step, predicted {:.1f}", round + 1, rounds,
                   files[i], 1e3 * plans[i].measured_seconds.back(), 1e3 * plans[i].predicted_seconds.back());
        }
        before = std::move(after);
      }
    }
  }
  return plans;
}

std::string checked_plans_json(const std::vector<CheckedPlan>& plans) {
  Json list = Json::array();
  for (const CheckedPlan& plan : plans)
    list.push_back({{"config", plan.config},
                    {"measured_seconds", plan.measured_seconds},
                    {"predicted_seconds", plan.predicted_seconds},
                    {"step_seconds", plan.step_seconds()},
                    {"error", plan.error()}});
  return list.dump(2) + "\n";
}

}  // namespace trainer
