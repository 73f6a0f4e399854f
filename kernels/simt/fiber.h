// Stacks of execution that one host thread switches between, and the guarded memory they run on.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

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
  void switch_to(Fiber& next) { change(next, false); }
  // The same for a fiber that is done; its stack may be used again.
  [[noreturn]] void leave_to(Fiber& next);

 private:
  struct Portable;  // what the C library's switch keeps

  static void begin();
  void change(Fiber& next, bool last);
  void arrived();

  void* stack_pointer_ = nullptr;
  Entry entry_ = nullptr;
  void* argument_ = nullptr;
  std::unique_ptr<Portable> portable_;
  // For AddressSanitizer, which must be told of stacks.
  void* fake_stack_ = nullptr;
  const void* bottom_ = nullptr;
  size_t size_ = 0;
};

// Stacks with an inaccessible page below each: a kernel that needs more ends the program instead of writing
// into a neighbour's. Kept until destruction.
class FiberStacks {
 public:
  FiberStacks() = default;
  ~FiberStacks();
  FiberStacks(const FiberStacks&) = delete;
  FiberStacks& operator=(const FiberStacks&) = delete;

  // Throws RunError when the memory cannot be had.
  std::span<std::byte> stack(size_t index);

 private:
  static constexpr size_t kGroup = 32;  // stacks of one mapping
  std::vector<std::byte*> groups_;
};

}  // namespace trainer::simt
