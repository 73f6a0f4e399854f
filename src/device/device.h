// What a rank computes on: memory, and queues of work on it. The host is one such device; a GPU is another,
// whose memory the host does not reach.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace trainer {

// Given back when this goes.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  // At least 64-byte aligned.
  std::span<std::byte> bytes() const { return bytes_; }

 protected:
  explicit DeviceMemory(std::span<std::byte> bytes = {}) : bytes_(bytes) {}
  std::span<std::byte> bytes_;
};
using DeviceMemoryPtr = std::unique_ptr<DeviceMemory>;

// A moment in a queue.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Whether all that was put into the queue before it is done. Throws RunError when the device failed.
  virtual bool reached() = 0;
  // Waits until it is. Throws likewise.
  virtual void wait() = 0;
};
using DeviceEventPtr = std::unique_ptr<DeviceEvent>;

// Work in order: these copies, and the kernels of a KernelSet made for the queue. Used by one thread at a
// time. Unless the host reaches the device's memory, work may still be under way when a call returns, and
// what it reads and writes must be left alone until `synchronise` or an event recorded behind it.
class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;
  // Whether device memory is host memory and all work is done when a call returns.
  virtual bool host_reaches() const = 0;
  virtual void copy_in(void* device, const void* host, size_t bytes) = 0;
  virtual void copy_out(void* host, const void* device, size_t bytes) = 0;
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  virtual DeviceEventPtr record() = 0;
  // Waits for all work put into the queue. Throws RunError when any of it failed.
  virtual void synchronise() = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;

  // Zero-filled. Throw RunError, naming the bytes, where there are not as many.
  virtual DeviceMemoryPtr allocate(size_t bytes) = 0;
  // Host memory that copies to and from the device are fast with and that its kernels reach too.
  virtual DeviceMemoryPtr allocate_pinned(size_t bytes) = 0;

  // Of the lane that computes, and of the thread that drives transfers and collectives. Between the runs of a
  // program both belong to the calling thread.
  virtual DeviceQueue& compute() = 0;
  virtual DeviceQueue& transfers() = 0;
  bool host_reaches() { return compute().host_reaches(); }
  // Kernels that the calling thread starts from now on are for this device. Threads that have used one of its
  // queues need not say so.
  virtual void select() {}
};

// The memory of this process; copies are plain copies. Has no state: one serves all ranks and threads.
Device& host_device();

// Host work on device memory: on the memory itself where the host reaches it, else on a copy. `body` is
// called once, with a span of `count` elements.

template <class T, class Body>
void read_on_host(DeviceQueue& queue, const T* data, size_t count, Body&& body) {
  if (queue.host_reaches()) return body(std::span<const T>(data, count));
  std::vector<T> values(count);
  queue.copy_out(values.data(), data, count * sizeof(T));
  queue.synchronise();
  body(std::span<const T>(values));
}

// The content before `body` is lost.
template <class T, class Body>
void write_on_host(DeviceQueue& queue, T* data, size_t count, Body&& body) {
  if (queue.host_reaches()) return body(std::span<T>(data, count));
  std::vector<T> values(count);
  body(std::span<T>(values));
  queue.copy_in(data, values.data(), count * sizeof(T));
  queue.synchronise();
}

template <class T, class Body>
void change_on_host(DeviceQueue& queue, T* data, size_t count, Body&& body) {
  if (queue.host_reaches()) return body(std::span<T>(data, count));
  std::vector<T> values(count);
  queue.copy_out(values.data(), data, count * sizeof(T));
  queue.synchronise();
  body(std::span<T>(values));
  queue.copy_in(data, values.data(), count * sizeof(T));
  queue.synchronise();
}

}  // namespace trainer
