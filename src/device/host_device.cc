#include <cstring>
#include <utility>

#include "device/arena.h"
#include "device/device.h"

namespace trainer {
namespace {

class HostMemory final : public DeviceMemory {
 public:
  explicit HostMemory(size_t bytes) : arena_(bytes) { bytes_ = arena_.bytes(); }

 private:
  Arena arena_;
};

class HostEvent final : public DeviceEvent {
 public:
  bool reached() override { return true; }
  void wait() override {}
};

class HostQueue final : public DeviceQueue {
 public:
  bool host_reaches() const override { return true; }
  void copy_in(void* device, const void* host, size_t bytes) override { copy(device, host, bytes); }
  void copy_out(void* host, const void* device, size_t bytes) override { copy(host, device, bytes); }
  void copy(void* to, const void* from, size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  DeviceEventPtr record() override { return std::make_unique<HostEvent>(); }
  void synchronise() override {}
};

class HostDevice final : public Device {
 public:
  std::string name() const override { return "host"; }
  DeviceMemoryPtr allocate(size_t bytes) override { return std::make_unique<HostMemory>(bytes); }
  DeviceMemoryPtr allocate_pinned(size_t bytes) override { return allocate(bytes); }
  DeviceQueue& compute() override { return queue_; }
  DeviceQueue& transfers() override { return queue_; }

 private:
  HostQueue queue_;
};

}  // namespace

Device& host_device() {
  static HostDevice device;
  return device;
}

}  // namespace trainer
