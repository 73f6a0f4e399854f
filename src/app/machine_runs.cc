#include "app/machine_runs.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "app/config.h"
#include "base/error.h"
#include "base/file.h"

extern char** environ;

namespace trainer {
namespace {

namespace fs = std::filesystem;

constexpr int kNotPossible = 77;  // of tools/slow_link.sh
constexpr size_t kLogEnd = 2000;  // characters of a log that an error quotes

// Runs a program to its end, with its output in a file. Returns its exit code.
int run_process(const std::vector<std::string>& words, const fs::path& log) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  pid_t process = 0;
  const int error = posix_spawnp(&process, arguments.front(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) run_error("cannot start {}: {}", words.front(), std::strerror(error));
  int status = 0;
  if (waitpid(process, &status, 0) != process) run_error("lost sight of {}", words.front());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string end_of(const fs::path& log) {
  const std::string text = read_file(log.string());
  return text.size() > kLogEnd ? text.substr(text.size() - kLogEnd) : text;
}

}  // namespace

MachineRuns::MachineRuns(fs::path work, const std::string& config)
    : work_(std::move(work)),
      config_(work_ / "config.json"),
      log_(work_ / "log"),
      program_(fs::read_symlink("/proc/self/exe")),
      slow_link_(find_resource("tools/slow_link.sh")) {
  fs::create_directories(work_);
  write_file_atomically(config_.string(), config);
  // Open MPI refuses root without these.
  for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}) setenv(name, "1", 0);
}

int MachineRuns::start(const Launch& launch, const std::vector<std::string>& words) const {
  std::vector<std::string> command;
  if (!launch.slow_link.empty())
    command = {slow_link_.string(), "--ranks", std::to_string(launch.ranks), "--rate",
               launch.slow_link,    "--"};
  else if (launch.ranks > 1)
    command = {"mpirun", "-n", std::to_string(launch.ranks), "--bind-to", "none"};
  command.push_back(program_.string());
  command.insert(command.end(), words.begin(), words.end());
  return run_process(command, log_);
}

void MachineRuns::must_succeed(const Launch& launch, const std::vector<std::string>& words) const {
  if (const int code = start(launch, words); code != 0)
    run_error("'trainer {}' on {} ranks ended with exit code {}:\n{}", words.front(), launch.ranks, code,
              end_of(log_));
}

bool MachineRuns::possible(const Launch& launch, std::string& why) const {
  if (!launch.slow_link.empty() && slow_link_.empty()) {
    why = "tools/slow_link.sh is neither in this folder nor beside the program";
    return false;
  }
  const int code = start(launch, {"version"});
  if (code == 0) return true;
  why = code == kNotPossible ? end_of(log_) : fmt::format("exit code {}: {}", code, end_of(log_));
  while (!why.empty() && why.back() == '\n') why.pop_back();
  return false;
}

std::vector<PlanRun> MachineRuns::check(const Launch& launch,
                                        const std::vector<std::vector<std::string>>& plans,
                                        int profiled_steps, int rounds) const {
  const fs::path file = work_ / "checked.json";
  std::vector<std::string> words = {"profile",
                                    "--check",
                                    file.string(),
                                    "--steps",
                                    std::to_string(profiled_steps),
                                    "--rounds",
                                    std::to_string(rounds)};
  for (size_t i = 0; i < plans.size(); ++i) {
    const Json json = config_to_json(read_config(config_.string(), plans[i]));
    words.push_back((work_ / fmt::format("plan_{}.json", i)).string());
    write_file_atomically(words.back(), json.dump());
  }
  must_succeed(launch, words);
  std::vector<PlanRun> runs;
  for (const Json& plan : parse_json_file(file.string()))
    runs.push_back({plan.at("step_seconds").get<double>(), plan.at("error").get<double>()});
  return runs;
}

}  // namespace trainer
