#include "checkpoint/background_part.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/on_threads.h"

namespace trainer {
namespace {

constexpr size_t kCopiedAtOnce = size_t{1} << 20;  // elements, by one thread
constexpr int kLowestPriority = 19;

// Of the calling thread and those that it starts.
void take_lowest_priority() { ::setpriority(PRIO_PROCESS, 0, kLowestPriority); }

struct Stretch {
  float* to;
  const float* from;
  size_t count;
};

}  // namespace

BackgroundPart::~BackgroundPart() = default;

void BackgroundPart::reserve(size_t bytes) {
  require(!thread_.joinable(), "memory is reserved first");
  reserving_ = true;
  thread_ = std::jthread([this, bytes] {
    take_lowest_priority();
    try {
      memory_ = Arena(bytes);
    } catch (const Error&) {
      memory_ = {};
    }
  });
}

void BackgroundPart::start(const std::filesystem::path& directory, int writer,
                           std::vector<PartTensor> tensors, int64_t threads) {
  if (std::exchange(reserving_, false)) thread_.join();
  require(!thread_.joinable(), "a part is being written already");
  size_t elements = 0;
  for (const PartTensor& tensor : tensors)
    if (!tensor.copy) elements += tensor.values.size();
  if (memory_.bytes().size() < elements * sizeof(float)) {
    memory_ = {};
    memory_ = Arena(elements * sizeof(float));
  }
  std::vector<Stretch> stretches;
  auto* next = reinterpret_cast<float*>(memory_.bytes().data());
  for (PartTensor& tensor : tensors) {
    if (tensor.copy) continue;
    const size_t count = tensor.values.size();
    for (size_t begin = 0; begin < count; begin += kCopiedAtOnce)
      stretches.push_back(
          {next + begin, tensor.values.data() + begin, std::min(kCopiedAtOnce, count - begin)});
    tensor.values = {next, count};
    next += count;
  }
  on_threads(threads, std::ssize(stretches), [&](int64_t i) {
    const Stretch& s = stretches[static_cast<size_t>(i)];
    std::copy_n(s.from, s.count, s.to);
  });
  tensors_ = std::move(tensors);
  failure_ = nullptr;
  writing_ = true;
  thread_ = std::jthread([this, directory, writer](const std::stop_token& given_up) {
    take_lowest_priority();
    try {
      write_part(directory, writer, tensors_, given_up);
    } catch (...) {
      failure_ = std::current_exception();
    }
    writing_ = false;
  });
}

void BackgroundPart::finish() {
  if (!reserving_ && thread_.joinable()) thread_.join();
  tensors_.clear();
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

}  // namespace trainer
