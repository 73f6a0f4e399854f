#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "comm/back_off.h"
#include "comm/collectives.h"
#include "comm/matched_communicator.h"
#include "comm/nccl/device_transport.h"
#include "comm/staged_communicator.h"
#include "device/cuda/cuda_device.h"

namespace trainer {
namespace {

constexpr int kSenderRank = 0, kReceiverRank = 1;          // within a channel's NCCL communicator
constexpr auto kLongestGoodbye = std::chrono::seconds(5);  // of a peer, when channels are closed

void check_nccl_cuda(cudaError_t code, const char* what) {
  if (code != cudaSuccess) run_error("{} failed: {}", what, cudaGetErrorString(code));
}

[[noreturn]] void nccl_failed(ncclComm_t communicator, ncclResult_t code, const char* what) {
  run_error("{} failed: {} ({})", what, ncclGetErrorString(code), ncclGetLastError(communicator));
}

// One direction between two ranks: an NCCL communicator of the two, in a stream of its own, so that it waits
// for no other channel. Nothing blocks: NCCL is asked until it is through with a call.
class NcclChannel : public std::enable_shared_from_this<NcclChannel> {
 public:
  NcclChannel(int device, const ncclUniqueId& id, bool sends) : device_(device), sends_(sends) {
    check_nccl_cuda(cudaSetDevice(device_), "cudaSetDevice");
    int least = 0, greatest = 0;
    check_nccl_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
    check_nccl_cuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest),
                    "cudaStreamCreateWithPriority");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const ncclResult_t code =
        ncclCommInitRankConfig(&communicator_, 2, id, sends ? kSenderRank : kReceiverRank, &config);
    if (code != ncclSuccess && code != ncclInProgress)
      nccl_failed(communicator_, code, "ncclCommInitRankConfig");
  }
  ~NcclChannel() {
    if (communicator_) ncclCommAbort(communicator_);
    cudaSetDevice(device_);
    if (const cudaError_t code = cudaStreamDestroy(stream_); code != cudaSuccess)
      log_warning("cudaStreamDestroy failed: {}", cudaGetErrorString(code));
  }
  NcclChannel(const NcclChannel&) = delete;
  NcclChannel& operator=(const NcclChannel&) = delete;

  RequestPtr transfer(void* data, size_t bytes) {
    waiting_.push_back({data, bytes, ++posted_});
    return std::make_unique<Transfer>(shared_from_this(), posted_);
  }

  // Closing is for both ends: begin it, then ask until it is over.
  void begin_closing() {
    closing_ = true;
    if (const ncclResult_t code = ncclCommFinalize(communicator_);
        code != ncclSuccess && code != ncclInProgress)
      nccl_failed(communicator_, code, "ncclCommFinalize");
  }
  bool closed() {
    if (!closing_ || !settled()) return false;
    ncclCommDestroy(std::exchange(communicator_, nullptr));
    return true;
  }

 private:
  struct Message {
    void* data;
    size_t bytes;
    int64_t number;
  };
  struct Launched {
    int64_t number;
    cudaEvent_t event;
  };

  class Transfer final : public Request {
   public:
    Transfer(std::shared_ptr<NcclChannel> channel, int64_t number)
        : channel_(std::move(channel)), number_(number) {}
    bool test() override {
      channel_->progress();
      return channel_->done_ >= number_;
    }

   private:
    const std::shared_ptr<NcclChannel> channel_;
    const int64_t number_;
  };

  // Whether NCCL is through with the last call.
  bool settled() {
    ncclResult_t state = ncclSuccess;
    if (const ncclResult_t code = ncclCommGetAsyncError(communicator_, &state); code != ncclSuccess)
      nccl_failed(communicator_, code, "ncclCommGetAsyncError");
    if (state == ncclInProgress) return false;
    if (state != ncclSuccess) nccl_failed(communicator_, state, "a transfer between CUDA devices");
    return true;
  }

  void progress() {
    check_nccl_cuda(cudaSetDevice(device_), "cudaSetDevice");
    while (settled()) {
      if (calling_) {
        // The event must stand behind what the call put into the stream.
        Launched launched{waiting_.front().number, nullptr};
        check_nccl_cuda(cudaEventCreateWithFlags(&launched.event, cudaEventDisableTiming),
                        "cudaEventCreateWithFlags");
        launched_.push_back(launched);
        check_nccl_cuda(cudaEventRecord(launched.event, stream_), "cudaEventRecord");
        waiting_.pop_front();
        calling_ = false;
      }
      if (waiting_.empty()) break;
      const Message& m = waiting_.front();
      const ncclResult_t code =
          sends_ ? ncclSend(m.data, m.bytes, ncclChar, kReceiverRank, communicator_, stream_)
                 : ncclRecv(m.data, m.bytes, ncclChar, kSenderRank, communicator_, stream_);
      if (code != ncclSuccess && code != ncclInProgress)
        nccl_failed(communicator_, code, sends_ ? "ncclSend" : "ncclRecv");
      calling_ = true;
    }
    while (!launched_.empty()) {
      const cudaError_t code = cudaEventQuery(launched_.front().event);
      if (code == cudaErrorNotReady) break;
      check_nccl_cuda(code, "a transfer between CUDA devices");
      done_ = launched_.front().number;
      check_nccl_cuda(cudaEventDestroy(launched_.front().event), "cudaEventDestroy");
      launched_.pop_front();
    }
  }

  const int device_;
  const bool sends_;
  cudaStream_t stream_ = nullptr;
  ncclComm_t communicator_ = nullptr;
  std::deque<Message> waiting_;    // for the call; the first may be under way
  std::deque<Launched> launched_;  // in the stream
  bool calling_ = false, closing_ = false;
  int64_t posted_ = 0, done_ = 0;  // numbers of messages
};

class NcclChannels final : public DeviceChannels {
 public:
  explicit NcclChannels(int device) : device_(device) {}
  ~NcclChannels() override {
    // A peer that failed would not answer.
    if (std::uncaught_exceptions() > 0) return;
    try {
      close();
    } catch (const std::exception& error) {
      log_warning("{}", error.what());
    }
  }
  NcclChannels(const NcclChannels&) = delete;
  NcclChannels& operator=(const NcclChannels&) = delete;

  Invitation invite(int peer) override {
    static_assert(sizeof(ncclUniqueId) == sizeof(Invitation));
    const auto [found, fresh] = invitations_.try_emplace(peer);
    if (fresh) {
      ncclUniqueId id;
      if (const ncclResult_t code = ncclGetUniqueId(&id); code != ncclSuccess)
        nccl_failed(nullptr, code, "ncclGetUniqueId");
      std::memcpy(found->second.data(), &id, sizeof id);
    }
    return found->second;
  }
  RequestPtr send(const void* data, size_t bytes, int peer, const Invitation& invitation) override {
    return channel(outgoing_, peer, invitation, true).transfer(const_cast<void*>(data), bytes);
  }
  RequestPtr receive(void* data, size_t bytes, int peer) override {
    return channel(incoming_, peer, invite(peer), false).transfer(data, bytes);
  }

 private:
  using ByPeer = std::map<int, std::shared_ptr<NcclChannel>>;

  NcclChannel& channel(ByPeer& channels, int peer, const Invitation& invitation, bool sends) {
    std::shared_ptr<NcclChannel>& channel = channels[peer];
    if (!channel) {
      ncclUniqueId id;
      std::memcpy(&id, invitation.data(), sizeof id);
      channel = std::make_shared<NcclChannel>(device_, id, sends);
    }
    return *channel;
  }

  // All at once, so that no two ranks wait for each other's next.
  void close() {
    std::set<std::shared_ptr<NcclChannel>> open;
    for (const ByPeer* channels : {&incoming_, &outgoing_})
      for (const auto& [peer, channel] : *channels) open.insert(channel);
    for (const auto& channel : open) channel->begin_closing();
    const auto end = std::chrono::steady_clock::now() + kLongestGoodbye;
    for (BackOff back_off; !open.empty() && std::chrono::steady_clock::now() < end; back_off.pause())
      std::erase_if(open, [](const auto& channel) { return channel->closed(); });
  }

  const int device_;
  std::map<int, Invitation> invitations_;  // made here
  ByPeer incoming_, outgoing_;
};

}  // namespace

std::unique_ptr<Communicator> make_device_communicator(std::unique_ptr<Communicator> group, Device& device,
                                                       DeviceQueue& queue) {
  const std::vector<std::string> ids = all_gather_bytes(*group, cuda_device_id(device));
  if (std::set(ids.begin(), ids.end()).size() < ids.size())
    return stage_through_host(std::move(group), device, queue);
  return match_over_channels(std::move(group), [index = cuda_index(device)](const Communicator&) {
    return std::make_unique<NcclChannels>(index);
  });
}

}  // namespace trainer
