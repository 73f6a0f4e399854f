#include "simt/machine.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <string_view>

#include "base/error.h"

namespace trainer::simt {
namespace {

constexpr int64_t kMostThreads = 1024;
constexpr int64_t kMostBlocksAlongX = (int64_t{1} << 31) - 1, kMostBlocksAlongOthers = 65535;

std::string line_of(const std::source_location& where) {
  const std::string_view file = where.file_name();
  return fmt::format("{}:{}", file.substr(file.find_last_of('/') + 1), where.line());
}

bool same_place(const std::source_location& a, const std::source_location& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

dim3 unrolled(int64_t index, dim3 size) {
  return {static_cast<unsigned>(index % size.x), static_cast<unsigned>(index / size.x % size.y),
          static_cast<unsigned>(index / size.x / size.y)};
}

std::string triple(dim3 at) { return fmt::format("({},{},{})", at.x, at.y, at.z); }

}  // namespace

Machine::Machine(const SimtOptions& options) : options_(options), random_state_(options.seed) {}
Machine::~Machine() = default;

// SplitMix64 (Steele et al., OOPSLA'14).
uint64_t Machine::random() {
  uint64_t z = random_state_ += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

void Machine::run(const Grid& grid, dim3 block, size_t shared_bytes, Body body, void* argument) {
  require(current_machine == nullptr, "a kernel launches a kernel");
  grid_ = &grid;
  block_ = block;
  if (block.count() < 1 || block.count() > kMostThreads || grid.size.count() < 1 ||
      grid.size.x > kMostBlocksAlongX || grid.size.y > kMostBlocksAlongOthers ||
      grid.size.z > kMostBlocksAlongOthers || shared_bytes > SharedMemory::kMostBytes) {
    run_error("{}: no device runs {} blocks of {} threads with {} bytes of shared memory each",
              line_of(grid.where), triple(grid.size), triple(block), shared_bytes);
  }
  body_ = body;
  argument_ = argument;
  count_ = static_cast<int>(block.count());
  if (threads_.size() < static_cast<size_t>(count_)) threads_.resize(static_cast<size_t>(count_));
  ready_.resize(threads_.size());
  warps_.resize(std::max(warps_.size(), static_cast<size_t>(count_ + kWarpThreads - 1) / kWarpThreads));
  const int64_t blocks = grid.size.count();
  // A random order needs no table: steps of a number that has no factor in common with the number of blocks.
  int64_t stride = 1, first = 0;
  if (options_.seed != 0) {
    first = static_cast<int64_t>(random() % static_cast<uint64_t>(blocks));
    do {
      stride = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(blocks));
    } while (std::gcd(stride, blocks) != 1);
  }
  gridDim = grid.size;
  blockDim = block;
  for (int64_t i = 0; i < blocks; ++i) {
    shared_.begin_block(shared_bytes, count_);
    run_block(
        unrolled(static_cast<int64_t>((first + static_cast<__int128>(i) * stride) % blocks), grid.size));
    if (!failure_.empty()) throw RunError(std::exchange(failure_, {}));
  }
}

void Machine::run_block(dim3 block_index) {
  block_index_ = block_index;
  blockIdx = block_index;
  ended_ = at_barrier_ = 0;
  ready_first_ = ready_count_ = 0;
  cancelled_ = false;
  for (int i = 0; i < count_; ++i) {
    Thread& thread = threads_[static_cast<size_t>(i)];
    thread.state = State::kFresh;
    thread.held = nullptr;
    thread.index = unrolled(i, block_);
    make_ready(i);
  }
  for (int w = 0; w * kWarpThreads < count_; ++w) {
    const int lanes = std::min(kWarpThreads, count_ - w * kWarpThreads);
    Warp& warp = warps_[static_cast<size_t>(w)];
    warp.lanes = lanes == kWarpThreads ? ~0u : (1u << lanes) - 1;
    warp.ended = 0;
    for (const auto& meeting : warp.meetings) meeting->mask = meeting->arrived = meeting->holding = 0;
  }
  current_machine = this;
  enter(next_ready());
  if (!failure_.empty()) {
    // What threads have on their stacks is destroyed before the stacks are used again.
    cancelled_ = true;
    for (int i = 0; i < count_; ++i) {
      const State state = threads_[static_cast<size_t>(i)].state;
      if (state != State::kFresh && state != State::kEnded) enter(i);
    }
  }
  current_machine = nullptr;
  current_ = -1;
}

void Machine::make_ready(int thread) {
  if (threads_[static_cast<size_t>(thread)].state != State::kFresh)
    threads_[static_cast<size_t>(thread)].state = State::kReady;
  ready_[(ready_first_ + ready_count_++) % ready_.size()] = thread;
}

int Machine::next_ready() {
  if (ready_count_ == 0) return -1;
  if (options_.seed != 0) {
    std::swap(ready_[ready_first_], ready_[(ready_first_ + random() % ready_count_) % ready_.size()]);
  }
  const int thread = ready_[ready_first_];
  ready_first_ = (ready_first_ + 1) % ready_.size();
  --ready_count_;
  return thread;
}

// From the host's stack.
void Machine::enter(int thread) { resume(thread, host_, false); }

void Machine::resume(int thread, Fiber& from, bool last) {
  Thread& next = threads_[static_cast<size_t>(thread)];
  if (next.state == State::kFresh) {
    next.fiber = &FiberPool::of_this_thread().prepared(static_cast<size_t>(thread), &thread_entry, this,
                                                       options_.portable_switch);
  }
  next.state = State::kReady;
  current_ = thread;
  threadIdx = next.index;
  if (last) from.leave_to(*next.fiber);
  from.switch_to(*next.fiber);
}

void Machine::thread_entry(void* machine) {
  auto* const self = static_cast<Machine*>(machine);
  self->run_thread();
  Thread& thread = self->threads_[static_cast<size_t>(self->current_)];
  thread.state = State::kEnded;
  if (self->failure_.empty()) {
    const int next = self->next_ready();
    if (next >= 0) self->resume(next, *thread.fiber, true);
    if (self->ended_ < self->count_) self->failure_ = self->standstill();
  }
  thread.fiber->leave_to(self->host_);
}

void Machine::run_thread() {
  try {
    body_(argument_);
    end_thread();
  } catch (const Cancelled&) {
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

void Machine::fail(const std::string& what) {
  if (failure_.empty()) failure_ = place(current_) + ": " + what;
}

void Machine::end_thread() {
  ++ended_;
  warps_[static_cast<size_t>(current_ / kWarpThreads)].ended |= 1u << lane();
  release(threads_[static_cast<size_t>(current_)]);
  if (at_barrier_ > 0) {
    run_error("ends while {} threads wait at the barrier of {}", at_barrier_, line_of(barrier_where_));
  }
}

// Lets others go on until this thread is made ready.
void Machine::wait(State state) {
  Thread& self = threads_[static_cast<size_t>(current_)];
  self.state = state;
  const int next = next_ready();
  if (next == current_) {
    self.state = State::kReady;
    return;
  }
  if (next >= 0) {
    resume(next, *self.fiber, false);
  } else {
    failure_ = standstill();
    self.fiber->switch_to(host_);
  }
  if (cancelled_) throw Cancelled{};
}

void Machine::barrier(std::source_location where) {
  Thread& self = threads_[static_cast<size_t>(current_)];
  release(self);
  if (at_barrier_ == 0) {
    barrier_where_ = where;
  } else if (!same_place(where, barrier_where_)) {
    run_error("waits at the barrier of {} while {} threads wait at that of {}", line_of(where), at_barrier_,
              line_of(barrier_where_));
  }
  if (ended_ > 0) run_error("waits at the barrier of {}, but {} threads have ended", line_of(where), ended_);
  self.where = where;
  if (++at_barrier_ < count_) {
    wait(State::kAtBarrier);
    return;
  }
  at_barrier_ = 0;
  shared_.block_met();
  for (int i = 0; i < count_; ++i) {
    if (i != current_) make_ready(i);
  }
  if (options_.seed != 0) {
    make_ready(current_);
    wait(State::kReady);
  }
}

void Machine::release(Thread& thread) {
  if (!thread.held) return;
  Meeting& meeting = *thread.held;
  meeting.holding &= ~(1u << (&thread - threads_.data()) % kWarpThreads);
  if (meeting.holding == 0) meeting.mask = meeting.arrived = 0;
  thread.held = nullptr;
}

Machine::Meeting& Machine::meeting_of(Warp& warp, uint32_t mask) {
  Meeting* unused = nullptr;
  for (const auto& meeting : warp.meetings) {
    if (meeting->mask == mask && !meeting->complete()) return *meeting;
    if (meeting->mask == 0) unused = meeting.get();
  }
  if (!unused) unused = warp.meetings.emplace_back(std::make_unique<Meeting>()).get();
  unused->mask = mask;
  return *unused;
}

const std::byte* Machine::meet(uint32_t mask, const void* message, size_t bytes, std::source_location where) {
  Thread& self = threads_[static_cast<size_t>(current_)];
  const int number = current_ / kWarpThreads;
  Warp& warp = warps_[static_cast<size_t>(number)];
  const uint32_t bit = 1u << lane();
  release(self);
  if ((mask & bit) == 0)
    run_error("{}: its lane {} is not in its own mask {:#x}", line_of(where), lane(), mask);
  if ((mask & ~warp.lanes) != 0) {
    run_error("{}: the mask {:#x} has lanes that the block lacks", line_of(where), mask);
  }
  if ((mask & warp.ended) != 0) {
    run_error("{}: the mask {:#x} has thread {}, which has ended", line_of(where), mask,
              number * kWarpThreads + std::countr_zero(mask & warp.ended));
  }
  Meeting& meeting = meeting_of(warp, mask);
  if (meeting.arrived == 0) {
    meeting.where = where;
  } else if (!same_place(where, meeting.where)) {
    run_error("waits in {} for lanes of its warp that wait in {}", line_of(where), line_of(meeting.where));
  }
  meeting.arrived |= bit;
  meeting.holding |= bit;
  self.held = &meeting;
  self.where = where;
  self.mask = mask;
  if (bytes > 0) std::memcpy(meeting.messages[static_cast<size_t>(lane())].data(), message, bytes);
  if (!meeting.complete()) {
    wait(State::kAtMeeting);
    return meeting.messages[0].data();
  }
  shared_.warp_met(number, mask, mask == warp.lanes);
  for (uint32_t rest = mask & ~bit; rest != 0; rest &= rest - 1) {
    make_ready(number * kWarpThreads + std::countr_zero(rest));
  }
  if (options_.seed != 0) {
    make_ready(current_);
    wait(State::kReady);
  }
  return meeting.messages[0].data();
}

std::string Machine::place(int thread) const {
  return fmt::format("kernel of {} ({}), block {}, thread {}", grid_->where.function_name(),
                     line_of(grid_->where), triple(block_index_),
                     triple(threads_[static_cast<size_t>(thread)].index));
}

std::string Machine::standstill() const {
  std::string text;
  int told = 0;
  for (int i = 0; i < count_ && told < 4; ++i) {
    const Thread& thread = threads_[static_cast<size_t>(i)];
    if (thread.state != State::kAtBarrier && thread.state != State::kAtMeeting) continue;
    // One thread of each place.
    const bool known = std::any_of(threads_.begin(), threads_.begin() + i, [&](const Thread& other) {
      return other.state == thread.state && same_place(other.where, thread.where) &&
             other.mask == thread.mask;
    });
    if (known) continue;
    if (told++ == 0) {
      text = place(i) + ": waits for ever: ";
    } else {
      text += fmt::format("; thread {} ", triple(thread.index));
    }
    text += thread.state == State::kAtBarrier
                ? fmt::format("at the barrier of {}", line_of(thread.where))
                : fmt::format("in {} for the lanes {:#x} of its warp", line_of(thread.where), thread.mask);
  }
  return text;
}

}  // namespace trainer::simt
