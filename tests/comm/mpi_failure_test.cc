// A rank that goes down takes the job with it: soon, with a status other than zero, leaving no process
// behind.
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "comm/mpi/mpi_communicator.h"

namespace trainer {
namespace {

struct Outcome {
  int status = 0;  // exit status, 128 + signal for a signal
  double seconds = 0;
  std::string output;  // both streams
};

Outcome run(const std::string& command) {
  const auto begin = std::chrono::steady_clock::now();
  Outcome outcome;
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) outcome.output.append(buffer, n);
  const int status = ::pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return outcome;
}

std::string mpirun(int ranks, const std::string& arguments, const std::string& marker = "none") {
  return "env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1 "
         "TRAINER_TEST_MARKER=" +
         marker + " timeout -k 5 60 " MPIEXEC " --oversubscribe -n " + std::to_string(ranks) +
         " " MPI_PROGRAM " " + arguments;
}

// Processes whose environment holds the marker.
int processes_marked(const std::string& marker) {
  int found = 0;
  DIR* proc = ::opendir("/proc");
  while (const dirent* entry = ::readdir(proc)) {
    std::ifstream file("/proc/" + std::string(entry->d_name) + "/environ", std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    found += text.find("TRAINER_TEST_MARKER=" + marker) != std::string::npos;
  }
  ::closedir(proc);
  return found;
}

class MpiFailure : public ::testing::TestWithParam<const char*> {};

TEST_P(MpiFailure, EndsTheJob) {
  const std::string kind = GetParam(), marker = "failure-" + kind + "-" + std::to_string(::getpid());
  const Outcome outcome = run(mpirun(4, "fail " + kind + " 2", marker));
  EXPECT_NE(outcome.status, 0) << outcome.output;
  EXPECT_LT(outcome.seconds, 30) << outcome.output;
  EXPECT_THAT(outcome.output, ::testing::ContainsRegex("rank 2|rank:? *\\[*[^ ]*,2\\]*"))
      << "the rank is named";
  if (kind == "throw" || kind == "abort") {
    EXPECT_THAT(outcome.output, ::testing::HasSubstr("[rank 2] the job ends: a made-up failure"));
    EXPECT_EQ(outcome.status, 1);
  }
  if (kind == "input") {
    EXPECT_EQ(outcome.status, 2);
  }
  if (kind == "exit") {
    EXPECT_THAT(outcome.output, ::testing::HasSubstr("[rank 2] the job ends: this rank exited"));
  }
  // The launcher may be a moment behind with reaping.
  for (int i = 0; i < 50 && processes_marked(marker) > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(processes_marked(marker), 0);
}

INSTANTIATE_TEST_SUITE_P(Kinds, MpiFailure,
                         ::testing::Values("kill", "throw", "exit", "quick_exit", "abort", "input"),
                         [](const auto& info) { return info.param; });

TEST(MpiEnvironment, AloneItNeedsNoMpiAndStartsAtOnce) {
  const Outcome outcome = run(
      "env -u OMPI_COMM_WORLD_SIZE -u PMI_SIZE -u PMIX_RANK -u SLURM_STEP_NUM_TASKS " MPI_PROGRAM " report");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.output, "rank 0 of 1, local 0 of 1\n");
  EXPECT_LT(outcome.seconds, 0.5);
}

TEST(MpiEnvironment, ALauncherMpiDoesNotKnowIsAnError) {
  const Outcome outcome =
      run("env -u OMPI_COMM_WORLD_SIZE -u PMIX_RANK PMI_SIZE=4 timeout 60 " MPI_PROGRAM " report");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.output, ::testing::HasSubstr("the launcher started 4 processes but MPI sees 1"));
}

}  // namespace
}  // namespace trainer
