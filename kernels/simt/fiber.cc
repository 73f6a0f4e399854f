#include "simt/fiber.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define TRAINER_FIBER_SANITIZER 1
#endif

#if defined(__x86_64__)
// Saves what the calling convention lets a callee keep, and the stack pointer; then the same of the other
// fiber.
asm(R"(
.text
.p2align 4
.local trainer_simt_switch
.type trainer_simt_switch, @function
trainer_simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size trainer_simt_switch, .-trainer_simt_switch
)");
extern "C" void trainer_simt_switch(void** save, void* load);
#endif

namespace trainer::simt {
namespace {

#if defined(TRAINER_FIBER_SANITIZER)
constexpr size_t kStackBytes = 256 << 10;
#else
constexpr size_t kStackBytes = 64 << 10;
#endif
constexpr size_t kGuardBytes = 4 << 10;

constinit thread_local Fiber* running = nullptr;   // the fiber that was switched to
constinit thread_local Fiber* previous = nullptr;  // the one that was left for it

}  // namespace

struct Fiber::Portable {
  ucontext_t context;
};

Fiber::Fiber() = default;
Fiber::~Fiber() = default;
Fiber::Fiber(Fiber&&) noexcept = default;

void Fiber::prepare(std::span<std::byte> stack, Entry entry, void* argument, bool portable) {
  entry_ = entry;
  argument_ = argument;
  bottom_ = stack.data();
  size_ = stack.size();
#if defined(__x86_64__)
  if (!portable) {
    portable_.reset();
    constexpr size_t kSavedRegisters = 6;
    auto** top = reinterpret_cast<void**>(stack.data() + stack.size());
    // As after a call: 8 bytes beyond a multiple of 16. Above the entry stands no caller.
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(&Fiber::begin);
    for (size_t i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
    stack_pointer_ = top;
    return;
  }
#else
  (void)portable;
#endif
  if (!portable_) portable_ = std::make_unique<Portable>();
  getcontext(&portable_->context);
  portable_->context.uc_stack.ss_sp = stack.data();
  portable_->context.uc_stack.ss_size = stack.size();
  portable_->context.uc_link = nullptr;
  makecontext(&portable_->context, &Fiber::begin, 0);
}

void Fiber::begin() {
  Fiber* self = running;
  self->arrived();
  self->entry_(self->argument_);
  std::abort();  // an entry leaves by leave_to
}

void Fiber::arrived() {
#if defined(TRAINER_FIBER_SANITIZER)
  const void* bottom = nullptr;
  size_t size = 0;
  __sanitizer_finish_switch_fiber(fake_stack_, &bottom, &size);
  previous->bottom_ = bottom;
  previous->size_ = size;
#endif
}

void Fiber::switch_to(Fiber& next) {
  running = &next;
  previous = this;
#if defined(TRAINER_FIBER_SANITIZER)
  __sanitizer_start_switch_fiber(&fake_stack_, next.bottom_, next.size_);
#endif
#if defined(__x86_64__)
  const bool portable = next.portable_ || portable_;
#else
  const bool portable = true;
#endif
  if (portable) {
    if (!portable_) portable_ = std::make_unique<Portable>();
    require(next.portable_ != nullptr, "a fiber of one kind of switch meets one of another");
    swapcontext(&portable_->context, &next.portable_->context);
  } else {
#if defined(__x86_64__)
    trainer_simt_switch(&stack_pointer_, next.stack_pointer_);
#endif
  }
  arrived();
}

void Fiber::leave_to(Fiber& next) {
  switch_to(next);
  std::abort();  // nothing switches to a fiber that is done
}

FiberPool& FiberPool::of_this_thread() {
  thread_local FiberPool pool;
  return pool;
}

FiberPool::~FiberPool() {
  for (std::byte* group : groups_) munmap(group, kGroup * (kGuardBytes + kStackBytes));
}

Fiber& FiberPool::prepared(size_t index, Fiber::Entry entry, void* argument, bool portable) {
  constexpr size_t kWhole = kGuardBytes + kStackBytes;
  while (fibers_.size() <= index) {
    void* memory = mmap(nullptr, kGroup * kWhole, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) run_error("no memory for the stacks of simulated threads: {}", strerror(errno));
    groups_.push_back(static_cast<std::byte*>(memory));
    for (size_t i = 0; i < kGroup; ++i) {
      if (mprotect(groups_.back() + i * kWhole, kGuardBytes, PROT_NONE) != 0) {
        run_error("the stacks of simulated threads cannot be guarded: {}", strerror(errno));
      }
    }
    for (size_t i = 0; i < kGroup; ++i) fibers_.push_back(std::make_unique<Fiber>());
  }
  std::byte* const stack = groups_[index / kGroup] + index % kGroup * kWhole + kGuardBytes;
  fibers_[index]->prepare({stack, kStackBytes}, entry, argument, portable);
  return *fibers_[index];
}

}  // namespace trainer::simt
