#include "comm/staged_communicator.h"

#include <algorithm>
#include <deque>
#include <exception>
#include <map>
#include <utility>

namespace trainer {
namespace {

constexpr size_t kStagingUnit = 4096;  // bytes

// Pinned memory that waits for the next message.
class StagingPool {
 public:
  explicit StagingPool(Device& device) : device_(device) {}

  // Of at least `bytes`: the smallest there is.
  DeviceMemoryPtr take(size_t bytes) {
    const auto found = free_.lower_bound(bytes);
    if (found == free_.end())
      return device_.allocate_pinned((std::max<size_t>(bytes, 1) + kStagingUnit - 1) / kStagingUnit *
                                     kStagingUnit);
    DeviceMemoryPtr memory = std::move(found->second);
    free_.erase(found);
    return memory;
  }
  void give(DeviceMemoryPtr memory) {
    const size_t bytes = memory->bytes().size();
    free_.emplace(bytes, std::move(memory));
  }

 private:
  Device& device_;
  std::multimap<size_t, DeviceMemoryPtr> free_;  // by bytes
};

struct StagedMessage {
  DeviceMemoryPtr staging;
  size_t bytes = 0;
  int peer = 0, tag = 0;
  DeviceEventPtr copied;  // out of the device, or into it
  RequestPtr transfer;    // of the inner communicator
};

// What a communicator and its requests share.
struct Staging {
  Staging(std::unique_ptr<Communicator> communicator, Device& of, DeviceQueue& lane)
      : inner(std::move(communicator)), device(of), queue(lane), pool(of) {}

  // Sends start in the order in which they were posted, whichever of them is asked about.
  void progress() {
    while (!outgoing.empty() && outgoing.front()->copied->reached()) {
      StagedMessage& m = *outgoing.front();
      m.transfer = inner->send(m.staging->bytes().data(), m.bytes, m.peer, m.tag);
      outgoing.pop_front();
    }
  }

  // Of a message that is given up: no copy may find its memory in other hands.
  void abandon(StagedMessage& m) {
    std::erase_if(outgoing, [&](const StagedMessage* other) { return other == &m; });
    m.transfer.reset();
    if (m.copied) {
      try {
        queue.synchronise();
      } catch (const std::exception&) {
        m.staging.release();  // the device has failed; what it still does to this memory is not known
        return;
      }
    }
    pool.give(std::move(m.staging));
  }

  std::unique_ptr<Communicator> inner;
  Device& device;
  DeviceQueue& queue;
  StagingPool pool;
  std::deque<StagedMessage*> outgoing;  // copies under way, in the order posted
};

class StagedRequest : public Request {
 public:
  StagedRequest(std::shared_ptr<Staging> staging, size_t bytes, int peer, int tag)
      : staging_(std::move(staging)) {
    message_.staging = staging_->pool.take(bytes);
    message_.bytes = bytes;
    message_.peer = peer;
    message_.tag = tag;
  }
  ~StagedRequest() override {
    if (message_.staging) staging_->abandon(message_);
  }
  StagedRequest(const StagedRequest&) = delete;
  StagedRequest& operator=(const StagedRequest&) = delete;

 protected:
  std::byte* memory() const { return message_.staging->bytes().data(); }
  bool done() const { return !message_.staging; }
  void finish() { staging_->pool.give(std::move(message_.staging)); }

  const std::shared_ptr<Staging> staging_;
  StagedMessage message_;
};

class StagedSend final : public StagedRequest {
 public:
  StagedSend(std::shared_ptr<Staging> staging, const void* data, size_t bytes, int peer, int tag)
      : StagedRequest(std::move(staging), bytes, peer, tag) {
    staging_->queue.copy_out(memory(), data, bytes);
    message_.copied = staging_->queue.record();
    staging_->outgoing.push_back(&message_);
  }
  bool test() override {
    staging_->progress();
    if (done()) return true;
    if (!message_.transfer || !message_.transfer->test()) return false;
    finish();
    return true;
  }
};

class StagedReceive final : public StagedRequest {
 public:
  StagedReceive(std::shared_ptr<Staging> staging, void* data, size_t bytes, int peer, int tag)
      : StagedRequest(std::move(staging), bytes, peer, tag), data_(data) {
    message_.transfer = staging_->inner->receive(memory(), bytes, peer, tag);
  }
  bool test() override {
    staging_->progress();
    if (done()) return true;
    if (!message_.copied) {
      if (!message_.transfer->test()) return false;
      staging_->queue.copy_in(data_, memory(), message_.bytes);
      message_.copied = staging_->queue.record();
    }
    if (!message_.copied->reached()) return false;
    finish();
    return true;
  }

 private:
  void* const data_;
};

class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(std::unique_ptr<Communicator> inner, Device& device, DeviceQueue& queue)
      : staging_(std::make_shared<Staging>(std::move(inner), device, queue)) {}

  int rank() const override { return staging_->inner->rank(); }
  int size() const override { return staging_->inner->size(); }
  std::vector<int> nodes() const override { return staging_->inner->nodes(); }

  // Empty messages (acknowledgements) have no memory, but keep their place behind those of the same tag.
  RequestPtr send(const void* data, size_t bytes, int peer, int tag) override {
    return std::make_unique<StagedSend>(staging_, data, bytes, peer, tag);
  }
  RequestPtr receive(void* data, size_t bytes, int peer, int tag) override {
    return std::make_unique<StagedReceive>(staging_, data, bytes, peer, tag);
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return stage_through_host(staging_->inner->split(color, key), staging_->device, staging_->queue);
  }
  void barrier() override { staging_->inner->barrier(); }
  void abort(const std::string& reason) override { staging_->inner->abort(reason); }

 private:
  const std::shared_ptr<Staging> staging_;
};

}  // namespace

std::unique_ptr<Communicator> stage_through_host(std::unique_ptr<Communicator> inner, Device& device,
                                                 DeviceQueue& queue) {
  return std::make_unique<StagedCommunicator>(std::move(inner), device, queue);
}

}  // namespace trainer
