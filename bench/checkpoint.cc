// Saving and loading the state of training, next to what the disk does with a file of the same size.
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>

#include "app/options.h"
#include "app/training_state.h"
#include "base/error.h"
#include "base/file.h"
#include "base/statistics.h"
#include "base/units.h"
#include "checkpoint/checkpoint_layout.h"
#include "comm/in_process.h"
#include "data/synthetic_source.h"
#include "device/arena.h"
#include "device/cores.h"
#include "support/backend.h"
#include "support/models.h"
#include "support/program.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUsage = R"(usage: checkpoint [options]

Saves the state of training and loads it again, by what training itself does, in turn with writing a file of the same
size (in pieces of 8 MiB, then fdatasync) and reading it (after it was dropped from the page cache). Then trains, and
saves in the background meanwhile: what of that training does not hide is exposed.

  --model NAME    gpt2-124m (default), llama-110m or qwen2.5-0.5b
  --folder PATH   on the disk in question (default: the working folder); what is written there is removed
  --rounds N      of saving and loading (default 3); medians count
  --steps N       timed without saving before and after at least as many with it (default 3); 0: none, and no saving in
                  the background
  --sequence N, --sequences-per-step N   of these steps (default 1024 and 8)
  --threads N     (default: all cores)
  --quick         a tiny model
  --json          one JSON object on standard output
)";

constexpr size_t kPiece = size_t{8} << 20;

struct Arguments {
  Words words;
  NamedModel model;
  Config config;
  fs::path folder;
  int64_t rounds = 3, steps = 3;
};

Arguments parse(const Words& words) {
  const Options options(
      words,
      {"--model", "--folder", "--rounds", "--steps", "--sequence", "--sequences-per-step", "--threads"},
      {"--quick"});
  const bool quick = options.has("--quick");
  Arguments a;
  a.words = words;
  const std::string name = options.find("--model").value_or("gpt2-124m");
  const auto& models = published_models();
  const auto model =
      std::find_if(models.begin(), models.end(), [&](const NamedModel& m) { return m.name == name; });
  if (model == models.end())
    input_error("--model: '{}' is none of gpt2-124m, llama-110m, qwen2.5-0.5b", name);
  a.model = quick ? tiny_models().front() : *model;
  a.folder = options.find("--folder").value_or(".");
  if (!fs::is_directory(a.folder)) input_error("--folder {}: no such folder", a.folder.string());
  a.rounds = options.integer("--rounds", quick ? 1 : 3, 1);
  a.steps = options.integer("--steps", quick ? 1 : 3, 0);
  Config& c = a.config;
  c.data.sequence_length = options.integer("--sequence", quick ? 16 : 1024, 1);
  c.training.micro_batch_size = 1;
  c.training.global_batch_size = options.integer("--sequences-per-step", quick ? 1 : 8, 1);
  c.training.steps = int64_t{1} << 30;
  c.optimizer.lr = 1e-4;
  c.optimizer.lr_decay_style = LrDecayStyle::kConstant;
  c.optimizer.lr_decay_steps = c.training.steps;
  c.device.threads = options.integer("--threads", static_cast<int64_t>(allowed_cores().size()), 1);
  c.checkpoint.keep_last = 1;
  return a;
}

// A folder of its own, which goes with all that is in it.
class ScratchFolder {
 public:
  explicit ScratchFolder(const fs::path& parent) {
    std::string pattern = (parent / "checkpoint-bench-XXXXXX").string();
    if (!::mkdtemp(pattern.data()))
      run_error("cannot make a folder in {}: {}", parent.string(), std::strerror(errno));
    path_ = pattern;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

double timed(const std::function<void()>& body) {
  const double begin = steady_seconds();
  body();
  return steady_seconds() - begin;
}

// The file must be on the disk already: pages that are not are kept.
void drop_from_cache(const fs::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) run_error("cannot open {}: {}", path.string(), std::strerror(errno));
  ::fdatasync(file);
  ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  ::close(file);
}

// What the disk is measured with.
class PlainFile {
 public:
  PlainFile(fs::path path, uint64_t bytes) : path_(std::move(path)), bytes_(bytes), memory_(kPiece) {}

  double write() {
    fs::remove(path_);
    return timed([&] {
      const int file = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
      bool good = file >= 0;
      for (uint64_t done = 0; good && done < bytes_;) {
        const ssize_t n = ::write(file, memory_.bytes().data(), std::min<uint64_t>(kPiece, bytes_ - done));
        good = n > 0;
        done += static_cast<uint64_t>(std::max<ssize_t>(n, 0));
      }
      good = good && ::fdatasync(file) == 0;
      if (!good) run_error("cannot write {}: {}", path_.string(), std::strerror(errno));
      ::close(file);
    });
  }
  double read() {
    drop_from_cache(path_);
    return timed([&] {
      const ReadableFile file(path_);
      for (uint64_t done = 0; done < bytes_;) {
        const uint64_t n = std::min<uint64_t>(kPiece, bytes_ - done);
        file.read(done, memory_.bytes().data(), n);
        done += n;
      }
    });
  }

 private:
  fs::path path_;
  uint64_t bytes_;
  Arena memory_;
};

// Of the newest checkpoint in a folder: older ones may be on their way out.
std::vector<fs::path> newest_files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(list_checkpoints(folder, "").front().path))
    if (entry.is_regular_file()) files.push_back(entry.path());
  return files;
}

// One rank that trains, saves and loads.
class Job {
 public:
  explicit Job(const Arguments& a) : config_(a.config), world_(make_in_process_group(1)) {
    data_.model = a.model.shape;
    data_.train =
        std::make_shared<SyntheticSource>(config_.data.sequence_length, data_.model.vocabulary_size, 1, 0,
                                          config_.training.steps * config_.training.global_batch_size);
    resolve_parallel(config_, data_.model, 1);
    rank_ = std::make_unique<TrainingRank>(config_, data_.model,
                                           make_training_backend("host", config_, *world_.front()),
                                           *world_.front(), data_.train, nullptr);
    rank_->allocate();
    state_.emplace(config_, data_, *rank_, *world_.front());
    state_->initialize();
  }
  double step() {
    const int64_t number = state_->step() + 1;
    return timed([&] {
      rank_->run(number, 1, nullptr);
      state_->complete(number, rank_->take_result(number));
      rank_->take_account(number);
    });
  }
  void count_a_step() { state_->complete(state_->step() + 1, {}); }
  TrainingState& state() { return *state_; }
  TrainingRank& rank() { return *rank_; }

 private:
  Config config_;
  TrainingData data_;
  std::vector<std::unique_ptr<Communicator>> world_;
  std::unique_ptr<TrainingRank> rank_;
  std::optional<TrainingState> state_;
};

Json measure_background(Job& job, const fs::path& folder, int64_t steps) {
  // Neither is timed: what is made at the first time is there afterwards.
  job.step();
  job.state().begin_save(folder);
  job.state().finish_save();
  std::vector<double> plain, meanwhile;
  for (int64_t s = 0; s < steps; ++s) plain.push_back(job.step());
  const double begin = steady_seconds();
  const double copy = timed([&] { job.state().begin_save(folder); });
  while (job.state().writing() || std::ssize(meanwhile) < steps) meanwhile.push_back(job.step());
  const double finish = timed([&] { job.state().finish_save(); });
  const double all = steady_seconds() - begin;
  for (int64_t s = 0; s < steps; ++s) plain.push_back(job.step());
  const double step = median(plain);
  double longer = 0;
  for (const double seconds : meanwhile) longer += seconds - step;
  const double exposed = copy + longer + finish;
  return {{"step_seconds", step},
          {"plain_steps", plain},
          {"copy_seconds", copy},
          {"steps_meanwhile", meanwhile},
          {"longer_seconds", longer},
          {"finish_seconds", finish},
          {"all_seconds", all},
          {"exposed_seconds", exposed},
          {"exposed_ratio_of_a_step", exposed / step},
          {"exposed_ratio_of_steps", exposed / (step * static_cast<double>(meanwhile.size()))}};
}

Json measure(const Arguments& a) {
  const ScratchFolder scratch(a.folder);
  const fs::path folder = scratch.path() / "checkpoints";
  Job job(a);
  job.state().save(folder);  // not timed: makes buffers and folders
  uint64_t bytes = 0;
  for (const auto& file : newest_files(folder)) bytes += fs::file_size(file);
  PlainFile plain(scratch.path() / "plain", bytes);
  std::vector<double> write, save, read, load;
  for (int64_t round = 0; round < a.rounds; ++round) {
    write.push_back(plain.write());
    job.count_a_step();  // so that it does not replace the one before
    save.push_back(timed([&] { job.state().save(folder); }));
    read.push_back(plain.read());
    for (const auto& file : newest_files(folder)) drop_from_cache(file);
    load.push_back(timed([&] { job.state().restore_newest(folder); }));
  }
  const auto rate = [&](const std::vector<double>& seconds) {
    return static_cast<double>(bytes) / median(seconds);
  };
  Json r;
  r["benchmark"] = "checkpoint";
  r["command"] = command_line("checkpoint", "host", a.words);
  r["machine"] = describe_machine("host", host_device(), job.rank().kernels(),
                                  static_cast<int>(a.config.device.threads));
  r["model"] = a.model.name;
  r["bytes"] = bytes;
  r["rows"] = Json::array();
  const auto add = [&](const char* name, const std::vector<double>& ours, const std::vector<double>& disk) {
    r["rows"].push_back({{"operation", name},
                         {"seconds", median(ours)},
                         {"all_seconds", ours},
                         {"bytes_per_second", rate(ours)},
                         {"ceiling_bytes_per_second", rate(disk)},
                         {"all_ceiling_seconds", disk},
                         {"ratio", rate(ours) / rate(disk)}});
  };
  add("save", save, write);
  add("load", load, read);
  if (a.steps > 0) r["background"] = measure_background(job, folder, a.steps);
  return r;
}

void print(const Json& r) {
  fmt::print("{}\n{}\n{}: {} of state\n\n", r["command"].get<std::string>(), r["machine"].get<std::string>(),
             r["model"].get<std::string>(), format_bytes(r["bytes"].get<double>()));
  for (const Json& row : r["rows"])
    fmt::print("{:<6} {:8.3f} s {:8.1f} MB/s; the disk {:8.1f} MB/s; ratio {:.1f} %\n",
               row["operation"].get<std::string>(), row["seconds"].get<double>(),
               row["bytes_per_second"].get<double>() / 1e6,
               row["ceiling_bytes_per_second"].get<double>() / 1e6, 100 * row["ratio"].get<double>());
  if (!r.contains("background")) return;
  const Json& b = r["background"];
  fmt::print(
      "in the background, over {} steps of {:.3f} s: copy {:.3f} s, steps longer by {:.3f} s, end {:.3f} s: "
      "exposed {:.1f} % of a step, {:.1f} % of these\n",
      b["steps_meanwhile"].size(), b["step_seconds"].get<double>(), b["copy_seconds"].get<double>(),
      b["longer_seconds"].get<double>(), b["finish_seconds"].get<double>(),
      100 * b["exposed_ratio_of_a_step"].get<double>(), 100 * b["exposed_ratio_of_steps"].get<double>());
}

}  // namespace
}  // namespace trainer

int main(int argc, char** argv) {
  using namespace trainer;
  return run_program({"checkpoint", kUsage}, argc, argv, [](const Words& words) {
    return Report{measure(parse(words)), print};
  });
}
