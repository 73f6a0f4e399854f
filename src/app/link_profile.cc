#include "app/link_profile.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/statistics.h"
#include "comm/back_off.h"
#include "device/arena.h"
#include "runtime/clock.h"

namespace trainer {
namespace {

constexpr int kMessageTag = 1, kLastTag = 2, kSumTag = 8;
constexpr int kRepeats = 9, kMessages = 25, kInARow = 8;
constexpr double kBesideSeconds = 0.05;       // at least, of transfers beside work
constexpr double kQuiet = 5e-3;               // seconds between messages, in which the receiver comes to rest
constexpr size_t kChunk = size_t{256} << 10;  // elements, as training uses
constexpr int64_t kRows = 256, kWidth = 512;  // of the work's matrix product

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// For which the calling thread had a core.
double core_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double slowest(Communicator& group, double seconds) {
  max_over_ranks(group, std::span(&seconds, 1));
  return seconds;
}

// Some compute, a millisecond or so at a time.
class Work {
 public:
  Work(KernelSet& kernels, DType dtype) : kernels_(kernels), dtype_(dtype) {
    WorkspaceShape bounds;
    bounds.dtype = dtype;
    bounds.tokens = kRows;
    bounds.widest_row = bounds.hidden = kWidth;
    const size_t workspace = kernels.workspace_bytes(bounds);
    const size_t matrix = static_cast<size_t>(kWidth * kWidth) * sizeof(float);
    memory_ = Arena(3 * matrix + workspace);
    x_ = memory_.bytes().data();
    y_ = x_ + matrix;
    w_ = y_ + matrix;
    kernels.grant_workspace({w_ + matrix, workspace});
  }
  void run(const std::function<bool()>& done) {
    do {
      kernels_.linear_forward({y_, dtype_}, {x_, dtype_}, {w_, dtype_}, {nullptr, dtype_}, kRows, kWidth,
                              kWidth);
    } while (!done());
  }

 private:
  KernelSet& kernels_;
  DType dtype_;
  Arena memory_;
  std::byte *x_ = nullptr, *y_ = nullptr, *w_ = nullptr;
};

class OpenGate : public ChunkGate {
 public:
  bool open() const override { return true; }
};

enum class Sender : uint8_t { kIdle, kComputes };

class Prober {
 public:
  Prober(Communicator& group, KernelSet& kernels, int busy_cores, DType dtype, int64_t message_bytes,
         int64_t sum_bytes, SumAlgorithm algorithm)
      : group_(group),
        work_(kernels, dtype),
        busy_cores_(busy_cores),
        message_(static_cast<size_t>(message_bytes)),
        sum_count_(static_cast<size_t>(sum_bytes) / sizeof(float)) {
    options_.algorithm = algorithm;
    clock_.synchronise(group);
    // Training lets transfers between stages pass where machines are joined.
    const auto nodes = group.nodes();
    if (std::any_of(nodes.begin(), nodes.end(), [&](int n) { return n != nodes.front(); }))
      options_.gate = &gate_;
    const size_t staging = staging_count(sum_count_, group.size(), kChunk, algorithm, nodes);
    memory_ = Arena(2 * message_ + (kRepeats * sum_count_ + staging) * sizeof(float));
    staging_ = {data() + kRepeats * sum_count_, staging};
  }

  LinkProfile measure() {
    LinkProfile p;
    // Connects, and touches what the transport needs.
    all_to_next();
    sum(sum_count_);
    const auto rate = [&](double seconds, double latency) {
      return static_cast<double>(message_) / std::max(seconds - latency, seconds / 4);
    };
    p.latency_seconds = one_way(sizeof(double), Sender::kIdle);
    const double alone = one_way(message_, Sender::kIdle);
    p.bytes_per_second = rate(alone, p.latency_seconds);
    p.core_wait_seconds = std::max(0.0, one_way(message_, Sender::kComputes) - alone);
    p.together_bytes_per_second = rate(timed([&] { all_to_next(); }), 0);
    const double least = timed_in_a_row([&] { sum(16); }), whole = timed_in_a_row([&] { sum(sum_count_); });
    const double n = group_.size();
    p.sum_latency_seconds = least / 2;
    p.sum_bytes_per_second = 2 * (n - 1) / n * static_cast<double>(sum_count_ * sizeof(float)) /
                             std::max(whole - least, whole / 4);
    if (busy_cores_ > 0) p.sum_cores = share([&] { sum(sum_count_); }, whole);
    return p;
  }

 private:
  float* data() { return reinterpret_cast<float*>(memory_.bytes().data() + 2 * message_); }

  void all_to_next() {
    const int n = group_.size(), next = (group_.rank() + 1) % n, before = (group_.rank() + n - 1) % n;
    const RequestPtr receive = group_.receive(memory_.bytes().data(), message_, before, kMessageTag);
    const RequestPtr send = group_.send(memory_.bytes().data() + message_, message_, next, kMessageTag);
    bool sent = false, received = false;
    BackOff back_off;
    while (true) {
      sent = sent || send->test();
      received = received || receive->test();
      if (sent && received) return;
      back_off.pause();
    }
  }
  // One layer's gradient after the other, as training has it: none is in the caches from the sum before.
  void sum(size_t count) {
    float* const gradient = data() + sum_count_ * (sums_++ % kRepeats);
    wait(*all_reduce_sum(group_, gradient, count, kChunk, staging_, kSumTag, options_));
  }

  template <class Body>
  double timed(Body&& body) {
    std::vector<double> seconds;
    for (int i = 0; i < kRepeats; ++i) {
      group_.barrier();
      const double begin = now();
      body();
      seconds.push_back(slowest(group_, now() - begin));
    }
    return median(seconds);
  }

  // Of one of several that follow each other as a step's sums do, and another one: what a link gives for a
  // moment after a rest does not count.
  template <class Body>
  double timed_in_a_row(Body&& body) {
    std::vector<double> seconds;
    for (int i = 0; i < kRepeats; ++i) {
      body();
      const double begin = now();
      for (int k = 0; k < kInARow; ++k) body();
      seconds.push_back(slowest(group_, now() - begin) / kInARow);
    }
    return median(seconds);
  }

  // Seconds from rank 0 to rank 1. As in training, the sender's thread polls for another message meanwhile,
  // and where work goes on beside it must get a core before it finds that there is something to send; that
  // counts. The time of departure travels with the message.
  double one_way(size_t bytes, Sender sender) {
    std::byte* const memory = memory_.bytes().data();
    std::vector<double> seconds;
    group_.barrier();
    if (group_.rank() == 0) {
      const auto messages = [&] {
        double last = 0;
        const RequestPtr other = group_.receive(&last, sizeof last, 1, kLastTag);
        for (int i = 0; i < kMessages; ++i) {
          const double departure = clock_.now() + kQuiet;
          BackOff back_off;
          while (clock_.now() < departure) {
            other->test();
            back_off.pause();
          }
          std::memcpy(memory, &departure, sizeof departure);
          wait(*group_.send(memory, bytes, 1, kMessageTag));
        }
        wait(*other);
      };
      if (sender == Sender::kComputes)
        beside(messages);
      else
        messages();
    } else if (group_.rank() == 1) {
      double departure = 0;
      for (int i = 0; i < kMessages; ++i) {
        wait(*group_.receive(memory, bytes, 0, kMessageTag));
        std::memcpy(&departure, memory, sizeof departure);
        seconds.push_back(clock_.now() - departure);
      }
      wait(*group_.send(&departure, sizeof departure, 0, kLastTag));
    }
    return slowest(group_, seconds.empty() ? 0 : std::max(0.0, median(seconds)));
  }

  // Runs `transfers` on a thread of its own and work meanwhile.
  template <class Body>
  void beside(Body&& transfers) {
    std::atomic<bool> done{false};
    std::exception_ptr error;
    std::jthread thread([&] {
      try {
        transfers();
      } catch (...) {
        error = std::current_exception();
      }
      done = true;
    });
    work_.run([&] { return done.load(); });
    thread.join();
    if (error) std::rethrow_exception(error);
  }

  template <class Body>
  CoreShare share(Body&& body, double seconds_alone) {
    const int repeats = std::max(kRepeats, static_cast<int>(kBesideSeconds / seconds_alone));
    std::vector<double> shares, weights;
    for (int round = 0; round < 3; ++round) {
      group_.barrier();
      double transfer_beside = 0, core = 0;
      beside([&] {
        body();
        const double begin = now(), core_begin = core_seconds();
        for (int i = 0; i < repeats; ++i) body();
        transfer_beside = (now() - begin) / repeats;
        core = (core_seconds() - core_begin) / repeats;
      });
      const CoreShare found = core_share_of(seconds_alone, transfer_beside, core, busy_cores_);
      shares.push_back(found.share);
      weights.push_back(found.weight);
    }
    std::vector<double> mean{median(shares), median(weights)};
    sum_over_ranks(group_, mean);
    return {mean[0] / group_.size(), mean[1] / group_.size()};
  }

  Communicator& group_;
  Work work_;
  int busy_cores_;
  OpenGate gate_;
  Clock clock_;
  CollectiveOptions options_;
  size_t message_, sum_count_;
  Arena memory_;
  std::span<float> staging_;
  size_t sums_ = 0;
};

}  // namespace

CoreShare core_share_of(double transfer_alone, double transfer_beside, double had_core, int busy_cores) {
  constexpr double kLeastTaken = 1e-3, kMostTaken = 0.999;
  const double share = std::min(1.0, had_core / transfer_alone) / busy_cores;
  if (share < kLeastTaken) return {};
  const double speed = std::min(1.0, transfer_alone / transfer_beside);
  // Where both want the core, the transfer gets its speed's part of its share.
  const double gets = std::min(speed * share, kMostTaken);
  return {share, gets / (1 - gets)};
}

LinkProfile measure_links(Communicator& group, KernelSet& kernels, int busy_cores, DType dtype,
                          int64_t message_bytes, int64_t sum_bytes, SumAlgorithm algorithm) {
  require(group.size() > 1, "a link has two ends");
  return Prober(group, kernels, busy_cores, dtype, message_bytes, sum_bytes, algorithm).measure();
}

}  // namespace trainer
