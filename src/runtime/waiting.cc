#include "runtime/waiting.h"

#include <algorithm>

namespace trainer {
namespace {

double& field(ExposedTime& exposed, Cause cause) {
  switch (cause) {
    case Cause::kBoundary:
      return exposed.boundary;
    case Cause::kGradSync:
      return exposed.grad_sync;
    case Cause::kUpdate:
      return exposed.update;
    case Cause::kPrefetch:
      return exposed.prefetch;
    case Cause::kRecovery:
      return exposed.recovery;
  }
  return exposed.boundary;
}

Cause cause_of(TaskKind kind) {
  switch (kind) {
    case TaskKind::kGradFold:
    case TaskKind::kGradSync:
    case TaskKind::kNormSync:
      return Cause::kGradSync;
    case TaskKind::kGradNorm:
    case TaskKind::kUpdateShard:
      return Cause::kUpdate;
    case TaskKind::kPrefetchWeights:
      return Cause::kPrefetch;
    case TaskKind::kRecover:
    case TaskKind::kOffload:
    case TaskKind::kReload:
      return Cause::kRecovery;
    default:
      return Cause::kBoundary;
  }
}

}  // namespace

void WaitLedger::book(int64_t step, Cause cause, double seconds) {
  field(steps_[step].exposed, cause) += seconds;
  total_[static_cast<size_t>(cause)] += seconds;
}

void WaitLedger::waited(int64_t step, TaskKind kind, double begin, double end) {
  const std::lock_guard lock(mutex_);
  book(step, cause_of(kind), end - begin);
}

double WaitLedger::waited_for_main_paths(int64_t ended, int64_t step, double begin, double end) {
  const std::lock_guard lock(mutex_);
  const auto found = main_path_ends_.find(ended);
  const double last = found == main_path_ends_.end() ? begin : std::clamp(found->second, begin, end);
  steps_[step].exposed.bubble += last - begin;
  return last;
}

void WaitLedger::all_main_paths_ended(int64_t step, double when) {
  const std::lock_guard lock(mutex_);
  main_path_ends_[step] = when;
  while (main_path_ends_.size() > 4) main_path_ends_.erase(main_path_ends_.begin());
}

void WaitLedger::waited_for_message(int64_t step, bool forward, int micro_batch, double begin, double end) {
  const std::lock_guard lock(mutex_);
  const auto arrival = arrivals_.find({forward, micro_batch});
  if (arrival == arrivals_.end()) return book(step, Cause::kBoundary, end - begin);
  // Until the sender had it: what the sender itself had waited for explains its part, the rest is the bubble.
  // After that it is the transfer.
  const double ready = std::clamp(arrival->second.ready, begin, end);
  double explained = 0;
  for (double seconds : arrival->second.exposed) explained += seconds;
  const double share = explained > 0 ? std::min(1.0, (ready - begin) / explained) : 0;
  for (size_t c = 0; c < kCauseCount; ++c)
    book(step, static_cast<Cause>(c), share * arrival->second.exposed[c]);
  steps_[step].exposed.bubble += ready - begin - share * explained;
  book(step, Cause::kBoundary, end - ready);
  arrivals_.erase(arrival);
}

void WaitLedger::ran(int64_t step, TaskKind kind, double seconds) {
  const std::lock_guard lock(mutex_);
  if (kind == TaskKind::kForward || kind == TaskKind::kBackward) {
    steps_[step].main_path += seconds;
    steps_[step].compute.push_back(seconds);
  } else
    book(step, cause_of(kind), seconds);
}

void WaitLedger::step_ended(int64_t step, double when) {
  const std::lock_guard lock(mutex_);
  steps_[step].end = when;
}

void WaitLedger::transferred(int64_t step, bool forward, int micro_batch, double begin, double end) {
  const std::lock_guard lock(mutex_);
  const auto arrival = arrivals_.find({forward, micro_batch});
  const double ready = arrival == arrivals_.end() ? begin : std::max(begin, arrival->second.ready);
  StepAccount& account = steps_[step];
  (forward ? account.received_forward : account.received_backward).push_back(std::max(0.0, end - ready));
}

BoundaryTrailer WaitLedger::outgoing(double now) const {
  const std::lock_guard lock(mutex_);
  return {now, total_};
}

void WaitLedger::arrived(bool forward, int micro_batch, const BoundaryTrailer& trailer) {
  const std::lock_guard lock(mutex_);
  BoundaryTrailer& last = last_[forward ? 0 : 1];
  Arrival arrival{trailer.ready, {}};
  for (size_t c = 0; c < kCauseCount; ++c)
    arrival.exposed[c] = std::max(0.0, trailer.exposed[c] - last.exposed[c]);
  last = trailer;
  arrivals_[{forward, micro_batch}] = arrival;
}

WaitLedger::StepAccount WaitLedger::take(int64_t step) {
  const std::lock_guard lock(mutex_);
  const auto it = steps_.find(step);
  if (it == steps_.end()) return {};
  const StepAccount account = it->second;
  steps_.erase(it);
  return account;
}

}  // namespace trainer
