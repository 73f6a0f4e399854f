// Ranks that are processes started by mpirun or srun. MPI itself appears in this folder only.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace trainer {

// The job this process belongs to, for the life of the program; create one, first thing in main.
//
// MPI is initialised only where a launcher started several processes; alone, the world is one rank, needs no
// MPI and starts at once. Where the launcher and MPI disagree about the number of processes the job is
// aborted with exit code 2.
//
// The end is collective when all is well. When the environment is destroyed by an exception, or the program
// exits while it is alive, the whole job is aborted instead, so that no rank waits for one that has gone.
class MpiEnvironment {
 public:
  // Messages longer than `longest_piece` bytes travel in pieces, which MPI's 32-bit counts ask for.
  explicit MpiEnvironment(size_t longest_piece = size_t{1} << 30);
  ~MpiEnvironment();
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Among the processes on this machine.
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }

  // A communicator over all ranks, apart from every other in its messages. Collective. It and its requests
  // must be gone before the environment is.
  std::unique_ptr<Communicator> world() const;

  // Says which rank failed and why on standard error and ends all processes of the job with this exit code.
  // Any thread may call it.
  [[noreturn]] void abort(const std::string& reason, int exit_code) const;

 private:
  const size_t longest_piece_;
  const int exceptions_;  // in flight when it was made
  bool initialised_ = false;
  std::shared_ptr<const std::vector<int>> nodes_;  // by rank; none while MPI is not initialised
  int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
};

}  // namespace trainer
