// Training a language model from a program of one's own: what `trainer train` does, step by step.
//
//   trainer::Session session = trainer::Session::open("config.json", {"training.steps=100"});
//   session.run(100, [](const trainer::StepReport& r) { std::printf("%ld %f\n", r.step, r.loss); });
//   session.save("checkpoints");
//
// Errors. Every function throws an exception derived from std::exception whose text says what was wrong,
// where (file, key), and what to do about it. What the caller got wrong (config, data, arguments) leaves the
// session as it was; after a failure while training (std::runtime_error from step, run, evaluate, resume) it
// may only be destroyed.
//
// Jobs. In a process that mpirun or srun started with others, a session is one rank of that job: every rank
// opens one, and calls the functions marked collective in the same order. An error of open(), and a failure
// in the midst of step, run or evaluate, ends the whole job there, with the reason on standard error. A
// process has one session in its life then, since MPI starts only once; alone it may have any number of them,
// one after the other or at the same time.
//
// Threads. One thread at a time may use a session; different sessions may be used by different threads. The
// calling thread does the computing, with threads of the session's own where device.threads says so. In a
// job, open() binds the calling thread to the rank's cores.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trainer {

// One training step. Equal on all ranks but for `seconds`.
struct StepReport {
  int64_t step = 0;          // from 1
  double loss = 0;           // nats, mean over the valid tokens of the global batch
  double gradient_norm = 0;  // of that mean, before clipping
  double learning_rate = 0;  // of this step's update
  int64_t valid_tokens = 0;  // tokens with a label in the global batch
  bool skipped = false;      // the loss or norm was not finite, or no token was valid: nothing was updated
  double seconds = 0;        // wall time on this rank
};

struct EvaluationReport {
  double loss = 0;     // nats, mean over the tokens
  int64_t tokens = 0;  // with a label
};

struct ParameterInfo {
  std::string name;            // as in a Hugging Face model folder
  std::vector<int64_t> shape;  // matrices are [output, input]
};

// Move-only. Owns all it needs: memory, threads, and the process's part in the job. Everything it hands out
// is a copy.
class Session {
 public:
  // Reads a config (docs/configuration.md), opens its data, allocates all memory that training will use and
  // sets the initial weights. run.directory must be there as in every config, but nothing is written to it: a
  // session writes only what `save` is asked for. `overrides`: "SECTION.KEY=VALUE", as after --set.
  // Collective.
  static Session open(const std::string& config_path, const std::vector<std::string>& overrides = {});
  // The same for a config's JSON text; paths in it are relative to the working folder, as in a file.
  static Session open_text(std::string_view config_json, const std::vector<std::string>& overrides = {});

  Session(Session&& other) noexcept;
  Session& operator=(Session&& other) noexcept;
  ~Session();

  int rank() const;
  int ranks() const;
  // Steps complete since the start of training, those before a `resume` included.
  int64_t steps_done() const;
  // training.steps: how far the learning rate schedule and the order of the samples go, and no step is made
  // beyond them.
  int64_t total_steps() const;
  // Bytes of this rank's process as planned before they were allocated.
  int64_t planned_memory_bytes() const;

  // Trains one step. Collective. Throws when total_steps are done, and when more steps in a row than
  // optimizer.max_consecutive_skips were skipped for a loss or norm that is not finite.
  StepReport step();
  // Trains `count` steps; the end of one may overlap the beginning of the next. `on_step` is called on this
  // thread after each, in order; what it throws is thrown on once all the steps are done. It may not use the
  // session. Collective.
  void run(int64_t count, const std::function<void(const StepReport&)>& on_step = {});

  // Loss on the validation split (all of it, or eval_steps global batches). Collective. Throws when the
  // config asks for none (training.eval_interval is 0, or data.split leaves nothing).
  EvaluationReport evaluate();

  // Writes DIRECTORY/step_NNNNNNNN, a checkpoint that `trainer` reads too, and removes all but the newest
  // checkpoint.keep_last there. It is complete when this returns, and never half there under that name.
  // Collective.
  void save(const std::string& directory);
  // Goes on from the newest checkpoint in a folder given to `save`, with the bits of an uninterrupted run.
  // Throws when there is none, or when it belongs to other data. Where every checkpoint there turns out to be
  // damaged, the weights are undefined after the exception. Collective.
  void resume(const std::string& directory);

  // Every parameter of the model, in the model's order.
  std::vector<ParameterInfo> parameters() const;
  // The fp32 values, row by row; nothing where another stage of the pipeline holds them, or tensor-parallel
  // ranks a part each. Throws for a name that the model does not have.
  std::optional<std::vector<float>> parameter(const std::string& name) const;

 private:
  struct State;
  explicit Session(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace trainer
