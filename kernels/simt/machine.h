// Runs kernels on the calling host thread: the threads of a block are fibers that give way where they wait
// for each other, and blocks come one after the other.
//
// Threads go on in turn, or in a random order that depends on a seed alone. A kernel that is right gives the
// same bits in every order.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "simt/fiber.h"
#include "simt/shared_memory.h"

namespace trainer::simt {

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  constexpr int64_t count() const { return int64_t{x} * y * z; }
};

struct SimtOptions {
  uint64_t seed = 0;             // 0: blocks and threads in turn; else in a random order of this seed
  bool portable_switch = false;  // between fibers by the C library where there is a switch in assembly too
};

// The size of a grid, and where in the source the launch stands: what errors call the kernel.
struct Grid {
  Grid(dim3 size, std::source_location where = std::source_location::current()) : size(size), where(where) {}
  Grid(std::integral auto blocks, std::source_location where = std::source_location::current())
      : size(static_cast<unsigned>(blocks)), where(where) {}
  dim3 size;
  std::source_location where;
};

class Machine {
 public:
  explicit Machine(const SimtOptions& options = {});
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  using Body = void (*)(void*);
  // body(argument) for every thread of every block; blocking. Throws RunError that names kernel, block and
  // thread when a thread does what would be undefined on a device (SharedMemory's checks; threads that wait
  // for what cannot happen), and what a thread throws. The machine can be used again afterwards.
  void run(const Grid& grid, dim3 block, size_t shared_bytes, Body body, void* argument);

  // The rest is for a thread of the running kernel.

  // Waits for all threads of the block at the same place in the source.
  void barrier(std::source_location where);
  // Waits for the threads of `mask` of the warp, each of which brings `bytes` (at most kMostMessage). Returns
  // what every lane brought, kMostMessage apart; it lasts until this thread waits again.
  static constexpr size_t kMostMessage = 64;
  const std::byte* meet(uint32_t mask, const void* message, size_t bytes, std::source_location where);

  int thread() const { return current_; }
  int lane() const { return current_ % kWarpThreads; }
  SharedMemory& shared() { return shared_; }

 private:
  enum class State : uint8_t { kFresh, kReady, kAtBarrier, kAtMeeting, kEnded };
  struct Meeting {
    uint32_t mask = 0, arrived = 0, holding = 0;  // lanes
    std::source_location where;
    alignas(16) std::array<std::array<std::byte, kMostMessage>, kWarpThreads> messages;
    bool complete() const { return arrived == mask; }
  };
  struct Thread {
    Fiber* fiber = nullptr;
    dim3 index;
    State state = State::kFresh;
    std::source_location where;  // where it waits
    uint32_t mask = 0;           // whom it waits for in its warp
    Meeting* held = nullptr;     // whose messages it may still read
  };
  struct Warp {
    std::vector<std::unique_ptr<Meeting>> meetings;
    uint32_t lanes = 0, ended = 0;  // that exist; that have ended
  };
  struct Cancelled {};  // unwinds the threads of a kernel that failed

  TRAINER_LEAVES_FIBER static void thread_entry(void* machine);
  void run_block(dim3 block_index);
  void run_thread();
  void end_thread();
  void wait(State state);
  void make_ready(int thread);
  int next_ready();  // -1: none
  void enter(int thread);
  TRAINER_LEAVES_FIBER void resume(int thread, Fiber& from, bool last);
  void fail(const std::string& what);
  void release(Thread& thread);
  Meeting& meeting_of(Warp& warp, uint32_t mask);
  std::string standstill() const;
  std::string place(int thread) const;
  uint64_t random();

  const SimtOptions options_;
  uint64_t random_state_;
  Fiber host_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<int> ready_;  // a ring
  size_t ready_first_ = 0, ready_count_ = 0;
  SharedMemory shared_;

  // Of the running kernel.
  const Grid* grid_ = nullptr;
  dim3 block_, block_index_;
  Body body_ = nullptr;
  void* argument_ = nullptr;
  int count_ = 0, current_ = -1, ended_ = 0, at_barrier_ = 0;
  std::source_location barrier_where_;
  bool cancelled_ = false;
  std::string failure_;
};

// Of the running thread, as CUDA names them.
inline constinit thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;
inline constinit thread_local Machine* current_machine = nullptr;

}  // namespace trainer::simt
