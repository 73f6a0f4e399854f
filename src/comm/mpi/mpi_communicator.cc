#include "comm/mpi/mpi_communicator.h"

#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/collectives.h"
#include "comm/in_process.h"
#include "comm/number_nodes.h"

namespace trainer {
namespace {

// Exits of the process while this is set abort the job.
std::atomic<bool> environment_alive{false};

int integer_variable(const char* name, int fallback) {
  const char* text = std::getenv(name);
  return text ? std::atoi(text) : fallback;
}

// How many processes the launcher says it started; 0 where it does not say. Open MPI's mpirun, then PMI
// launchers, then srun (in a step, not in a batch script, which is one process of a larger allocation).
int launched_processes() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
    if (const int count = integer_variable(name, 0); count > 0) return count;
  return std::getenv("PMIX_RANK") ? 0 : 1;
}

std::string mpi_message(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  return {text, static_cast<size_t>(length)};
}

void check(int code, const char* what) {
  if (code != MPI_SUCCESS) run_error("{} failed: {}", what, mpi_message(code));
}

[[noreturn]] void abort_job(int rank, const std::string& reason, int exit_code) {
  // One write, so that lines of several ranks do not mix.
  const std::string line = fmt::format("[rank {}] the job ends: {}\n", rank, reason);
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
  environment_alive = false;
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

void abort_at_exit() {
  if (environment_alive) abort_job(world_rank(), "this rank exited before the end of the run", 1);
}

// The pieces of one message. `data` and its pieces' order are the same on both sides.
class MpiRequest : public Request {
 public:
  MpiRequest() = default;
  ~MpiRequest() override {
    // A buffer that MPI may still write to is about to go; without the cancellation it would be written all
    // the same.
    for (size_t i = done_; i < pieces_.size(); ++i) {
      MPI_Cancel(&pieces_[i].handle);
      MPI_Request_free(&pieces_[i].handle);
    }
  }
  MpiRequest(const MpiRequest&) = delete;
  MpiRequest& operator=(const MpiRequest&) = delete;

  // `post(pointer offset, count, &handle)` starts one piece.
  template <class Post>
  void start(size_t bytes, size_t longest_piece, Post post) {
    pieces_.reserve(bytes / longest_piece + 1);
    size_t begin = 0;
    do {
      const size_t length = std::min(longest_piece, bytes - begin);
      pieces_.push_back({MPI_REQUEST_NULL, static_cast<int>(length)});
      post(begin, static_cast<int>(length), &pieces_.back().handle);
      begin += length;
    } while (begin < bytes);
  }
  void expect_from(int peer, int tag) {
    receiving_ = true;
    peer_ = peer;
    tag_ = tag;
  }

  bool test() override {
    while (done_ < pieces_.size()) {
      int complete = 0;
      MPI_Status status;
      check(MPI_Test(&pieces_[done_].handle, &complete, &status), "an MPI transfer");
      if (!complete) return false;
      const int expected = pieces_[done_++].bytes;
      if (!receiving_) continue;
      int received = 0;
      MPI_Get_count(&status, MPI_BYTE, &received);
      if (received != expected)
        run_error("message from rank {} with tag {}: {} bytes were sent, {} expected", peer_, tag_, received,
                  expected);
    }
    return true;
  }

 private:
  struct Piece {
    MPI_Request handle;
    int bytes;
  };
  std::vector<Piece> pieces_;
  size_t done_ = 0;
  bool receiving_ = false;
  int peer_ = 0, tag_ = 0;
};

// A collective of MPI itself.
class MpiCollective : public Request {
 public:
  MPI_Request* handle() { return &handle_; }
  bool test() override {
    int complete = 0;
    check(MPI_Test(&handle_, &complete, MPI_STATUS_IGNORE), "an MPI collective");
    return complete != 0;
  }

 private:
  MPI_Request handle_ = MPI_REQUEST_NULL;
};

class MpiCommunicator : public Communicator {
 public:
  // Owns `handle`.
  MpiCommunicator(MPI_Comm handle, size_t longest_piece, std::shared_ptr<const std::vector<int>> world_nodes)
      : handle_(handle), longest_piece_(longest_piece), world_nodes_(std::move(world_nodes)) {
    check(MPI_Comm_set_errhandler(handle_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    MPI_Comm_rank(handle_, &rank_);
    MPI_Comm_size(handle_, &size_);
    nodes_ = find_nodes();
  }
  ~MpiCommunicator() override {
    // Freeing may wait for the other ranks, which an exception must not.
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (!finalized && std::uncaught_exceptions() == 0) MPI_Comm_free(&handle_);
  }
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<int> nodes() const override { return nodes_; }

  RequestPtr send(const void* data, size_t bytes, int peer, int tag) override {
    auto request = std::make_unique<MpiRequest>();
    request->start(bytes, longest_piece_, [&](size_t begin, int length, MPI_Request* handle) {
      check(MPI_Isend(static_cast<const char*>(data) + begin, length, MPI_BYTE, peer, tag, handle_, handle),
            "MPI_Isend");
    });
    return request;
  }

  RequestPtr receive(void* data, size_t bytes, int peer, int tag) override {
    auto request = std::make_unique<MpiRequest>();
    request->expect_from(peer, tag);
    request->start(bytes, longest_piece_, [&](size_t begin, int length, MPI_Request* handle) {
      check(MPI_Irecv(static_cast<char*>(data) + begin, length, MPI_BYTE, peer, tag, handle_, handle),
            "MPI_Irecv");
    });
    return request;
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    MPI_Comm part = MPI_COMM_NULL;
    check(MPI_Comm_split(handle_, color, key, &part), "MPI_Comm_split");
    return std::make_unique<MpiCommunicator>(part, longest_piece_, world_nodes_);
  }

  void barrier() override {
    MpiCollective request;
    check(MPI_Ibarrier(handle_, request.handle()), "MPI_Ibarrier");
    wait(request);
  }

  void abort(const std::string& reason) override { abort_job(world_rank(), reason, 1); }

 private:
  std::vector<int> find_nodes() const {
    std::vector<int> own(static_cast<size_t>(size_)), world(own.size()), nodes;
    std::iota(own.begin(), own.end(), 0);
    MPI_Group own_group = MPI_GROUP_NULL, world_group = MPI_GROUP_NULL;
    check(MPI_Comm_group(handle_, &own_group), "MPI_Comm_group");
    check(MPI_Comm_group(MPI_COMM_WORLD, &world_group), "MPI_Comm_group");
    const int code = MPI_Group_translate_ranks(own_group, size_, own.data(), world_group, world.data());
    MPI_Group_free(&own_group);
    MPI_Group_free(&world_group);
    check(code, "MPI_Group_translate_ranks");
    for (const int rank : world) nodes.push_back((*world_nodes_)[static_cast<size_t>(rank)]);
    return number_nodes(nodes);
  }

  MPI_Comm handle_;
  const size_t longest_piece_;
  const std::shared_ptr<const std::vector<int>> world_nodes_;  // by rank of MPI_COMM_WORLD
  int rank_ = 0, size_ = 1;
  std::vector<int> nodes_;
};

}  // namespace

MpiEnvironment::MpiEnvironment(size_t longest_piece)
    : longest_piece_(longest_piece), exceptions_(std::uncaught_exceptions()) {
  const int launched = launched_processes();
  if (launched == 1) return;
  int granted = MPI_THREAD_SINGLE;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &granted), "MPI_Init_thread");
  initialised_ = true;
  environment_alive = true;
  std::atexit(abort_at_exit);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);

  MPI_Comm local = MPI_COMM_NULL;
  check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &local),
        "MPI_Comm_split_type");
  MPI_Comm_rank(local, &local_rank_);
  MPI_Comm_size(local, &local_size_);
  // A node is known by its lowest rank.
  int lowest = rank_;
  std::vector<int> nodes(static_cast<size_t>(size_));
  check(MPI_Bcast(&lowest, 1, MPI_INT, 0, local), "MPI_Bcast");
  check(MPI_Allgather(&lowest, 1, MPI_INT, nodes.data(), 1, MPI_INT, MPI_COMM_WORLD), "MPI_Allgather");
  nodes_ = std::make_shared<const std::vector<int>>(std::move(nodes));
  MPI_Comm_free(&local);

  if (launched > 1 && size_ != launched)
    abort(fmt::format(
              "the launcher started {} processes but MPI sees {}; start the job with the mpirun of the MPI "
              "library this program was built with, or with srun --mpi=pmix",
              launched, size_),
          2);
  if (granted < MPI_THREAD_MULTIPLE) abort("this MPI library does not let several threads communicate", 2);
  int* largest_tag = nullptr;
  int known = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &largest_tag, &known);
  if (!known || *largest_tag < kMatchingTag)
    abort(fmt::format("this MPI library's largest message tag is below {}", kMatchingTag), 2);
}

MpiEnvironment::~MpiEnvironment() {
  if (!initialised_) return;
  if (std::uncaught_exceptions() > exceptions_) abort("an error ended this rank", 1);
  environment_alive = false;
  MPI_Finalize();
}

std::unique_ptr<Communicator> MpiEnvironment::world() const {
  if (!initialised_) return std::move(make_in_process_group(1).front());
  MPI_Comm copy = MPI_COMM_NULL;
  check(MPI_Comm_dup(MPI_COMM_WORLD, &copy), "MPI_Comm_dup");
  return std::make_unique<MpiCommunicator>(copy, longest_piece_, nodes_);
}

void MpiEnvironment::abort(const std::string& reason, int exit_code) const {
  if (initialised_) abort_job(rank_, reason, exit_code);
  std::fputs(fmt::format("the job ends: {}\n", reason).c_str(), stderr);
  std::_Exit(exit_code);
}

}  // namespace trainer
