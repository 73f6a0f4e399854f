#include "trainer/session.h"

#include "app/agreement.h"
#include "app/backend.h"
#include "app/training_state.h"
#include "comm/mpi/mpi_communicator.h"

namespace trainer {

// Members are destroyed from the last to the first: the rank before the job it belongs to.
struct Session::State {
  MpiEnvironment mpi;
  std::unique_ptr<Communicator> world = mpi.world();
  Config config;
  TrainingData data;
  std::optional<TrainingRank> rank;
  std::optional<TrainingState> training;
  MemoryPlan memory;

  template <class ReadConfig>
  void open(ReadConfig&& read) {
    RankBackend backend;
    together(*world, [&] {
      config = read();
      data = open_training(config, mpi);
      backend = make_backend(config, *world);
    });
    rank.emplace(config, data.model, std::move(backend), *world, data.train, data.valid);
    memory = rank->memory_plan();
    together(*world, [&] { rank->allocate(); });
    training.emplace(config, data, *rank, *world);
    training->initialize();
  }

  // Work that all ranks do at once. A rank that failed in it would leave the others waiting, so the job ends.
  template <class Body>
  auto all_or_abort(Body&& body) {
    try {
      return body();
    } catch (const std::exception& error) {
      const auto* known = dynamic_cast<const Error*>(&error);
      if (mpi.size() > 1) mpi.abort(error.what(), known ? known->exit_code() : 1);
      throw;
    }
  }
};

Session::Session(std::unique_ptr<State> state) : state_(std::move(state)) {}
Session::Session(Session&& other) noexcept = default;
Session& Session::operator=(Session&& other) noexcept = default;
Session::~Session() = default;

Session Session::open(const std::string& config_path, const std::vector<std::string>& overrides) {
  auto state = std::make_unique<State>();
  state->all_or_abort([&] { state->open([&] { return read_config(config_path, overrides); }); });
  return Session(std::move(state));
}

Session Session::open_text(std::string_view config_json, const std::vector<std::string>& overrides) {
  auto state = std::make_unique<State>();
  state->all_or_abort(
      [&] { state->open([&] { return parse_config(config_json, "the config", overrides); }); });
  return Session(std::move(state));
}

int Session::rank() const { return state_->mpi.rank(); }
int Session::ranks() const { return state_->mpi.size(); }
int64_t Session::steps_done() const { return state_->training->step(); }
int64_t Session::total_steps() const { return state_->config.training.steps; }
int64_t Session::planned_memory_bytes() const { return state_->memory.total(); }

StepReport Session::step() {
  StepReport report;
  run(1, [&](const StepReport& r) { report = r; });
  return report;
}

void Session::run(int64_t count, const std::function<void(const StepReport&)>& on_step) {
  const int64_t done = steps_done(), total = total_steps();
  if (count < 0 || count > total - done)
    input_error("{} steps were asked for, but {} of the {} steps of key 'training.steps' are done", count,
                done, total);
  TrainingRank& rank = *state_->rank;
  // What all ranks throw alike, or the caller does, waits for the end, where no rank is in the midst of a
  // step.
  std::exception_ptr thrown;
  const auto attempt = [&](const auto& body) {
    try {
      body();
    } catch (...) {
      if (!thrown) thrown = std::current_exception();
    }
  };
  double begin = rank.clock().now();
  state_->all_or_abort([&] {
    rank.run(done + 1, static_cast<int>(count), [&](int64_t step) {
      const double end = rank.clock().now();
      const StepResult result = rank.take_result(step);
      rank.take_account(step);
      const StepReport report{.step = step,
                              .loss = result.loss,
                              .gradient_norm = result.gradient_norm,
                              .learning_rate = result.learning_rate,
                              .valid_tokens = result.valid_tokens,
                              .skipped = result.skipped,
                              .seconds = end - begin};
      begin = end;
      attempt([&] { state_->training->complete(step, result); });
      if (on_step && !thrown) attempt([&] { on_step(report); });
    });
  });
  if (thrown) std::rethrow_exception(thrown);
}

EvaluationReport Session::evaluate() {
  if (!state_->data.valid)
    input_error(
        "there is no validation split: set key 'training.eval_interval' above 0 and give the second part of "
        "'data.split' a share");
  const ClassifierResult result =
      state_->all_or_abort([&] { return state_->rank->evaluate(state_->config.training.eval_steps); });
  const double tokens = static_cast<double>(result.valid_tokens);
  return {result.valid_tokens > 0 ? result.loss_sum / tokens : 0, result.valid_tokens};
}

void Session::save(const std::string& directory) { state_->training->save(directory); }

void Session::resume(const std::string& directory) {
  if (state_->training->restore_newest(directory).empty())
    input_error("{}: there is no complete checkpoint to resume from", directory);
}

std::vector<ParameterInfo> Session::parameters() const {
  std::vector<ParameterInfo> list;
  const Model& model = state_->rank->model();
  for (int l = 0; l < model.layer_count(); ++l)
    for (const ParameterSpec& p : model.layer(l).parameters()) list.push_back({p.name, p.shape});
  return list;
}

std::optional<std::vector<float>> Session::parameter(const std::string& name) const {
  const Model& model = state_->rank->model();
  for (int l = 0; l < model.layer_count(); ++l)
    for (const ParameterSpec& p : model.layer(l).parameters()) {
      if (p.name != name) continue;
      if (p.count() != p.logical_count()) return std::nullopt;
      return state_->rank->parameter_values(name);
    }
  input_error("the model has no parameter '{}'; parameters() lists them", name);
}

}  // namespace trainer
