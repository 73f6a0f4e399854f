// One interface of communication for MPI and for ranks that are threads of one process.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace trainer {

// A transfer or collective under way. Progress is made by whoever calls `test`; nothing runs inline
// elsewhere.
class Request {
 public:
  virtual ~Request() = default;
  // True once complete; after that the buffers belong to the caller again. Throws RunError when the peer is
  // lost.
  virtual bool test() = 0;
};
using RequestPtr = std::unique_ptr<Request>;

// A group of ranks. One communicator is used by one thread at a time; different communicators by different
// threads.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // By rank, the node (machine) it runs on; nodes are numbered from 0 in the order of their lowest ranks.
  // Like all that asks a communicator from `split` something, it may wait until its other ranks have split
  // too.
  virtual std::vector<int> nodes() const = 0;

  // Non-blocking. `data` must stay valid and untouched until test() returns true. Messages between two ranks
  // with one tag arrive in the order sent; a receive must be given the exact size sent.
  virtual RequestPtr send(const void* data, size_t bytes, int peer, int tag) = 0;
  virtual RequestPtr receive(void* data, size_t bytes, int peer, int tag) = 0;

  // Collective over all ranks of this communicator: those with one `color` form a group, ordered by `key`.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;
  // Collective and blocking.
  virtual void barrier() = 0;
  // Ends the whole job within seconds, naming this rank and the reason on every surviving rank. Any thread
  // may call it.
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace trainer
