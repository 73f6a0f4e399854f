// Stacks of execution that one host thread switches between, and the guarded memory they run on.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

// For functions on a fiber that never return: AddressSanitizer would have to clean up behind them, at every
// start of a simulated thread and at far greater cost than the start.
#define TRAINER_LEAVES_FIBER __attribute__((no_sanitize_address))

namespace trainer::simt {

// A function on a stack of its own, or (default constructed) the caller's own stack. Fibers stay on the host
// thread that made them.
class Fiber {
 public:
  using Entry = void (*)(void*);

  Fiber();
  ~Fiber();
  Fiber(Fiber&&) noexcept;

  // The next switch to this fiber begins entry(argument) on `stack`. `entry` never returns: it leaves by
  // `leave_to`. `portable`: by the C library's context switch even where there is one in assembly.
  void prepare(std::span<std::byte> stack, Entry entry, void* argument, bool portable);

  // Goes on in `next`; returns when something switches back here.
  TRAINER_LEAVES_FIBER void switch_to(Fiber& next);
  // The same for a fiber that is done; it may be prepared again.
  [[noreturn]] TRAINER_LEAVES_FIBER void leave_to(Fiber& next);

 private:
  struct Portable;  // what the C library's switch keeps

  TRAINER_LEAVES_FIBER static void begin();
  void arrived();

  void* stack_pointer_ = nullptr;
  Entry entry_ = nullptr;
  void* argument_ = nullptr;
  std::unique_ptr<Portable> portable_;
  // For AddressSanitizer, which must be told of stacks. The one that it keeps beside them is dear to make and
  // lasts as long as the fiber.
  void* fake_stack_ = nullptr;
  const void* bottom_ = nullptr;
  size_t size_ = 0;
};

// Fibers with stacks for all who run some on this host thread. An inaccessible page lies below each stack: a
// kernel that needs more ends the program instead of writing into a neighbour's. Kept until the host thread
// ends.
class FiberPool {
 public:
  static FiberPool& of_this_thread();
  ~FiberPool();
  FiberPool(const FiberPool&) = delete;
  FiberPool& operator=(const FiberPool&) = delete;

  // The fiber of a number, made ready to begin (Fiber::prepare). Throws RunError when there is no memory for
  // it.
  Fiber& prepared(size_t index, Fiber::Entry entry, void* argument, bool portable);

 private:
  FiberPool() = default;
  static constexpr size_t kGroup = 32;  // stacks of one mapping
  std::vector<std::byte*> groups_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
};

}  // namespace trainer::simt
