// What a rank computes with, by device.kind.
#pragma once

#include <memory>

#include "app/config.h"
#include "runtime/training_binder.h"

namespace trainer {

struct RankBackend {
  RankBackend() = default;
  // On the host.
  RankBackend(std::unique_ptr<KernelSet> host_kernels) : kernels(std::move(host_kernels)) {}

  std::shared_ptr<Device> device{std::shared_ptr<Device>(), &host_device()};
  std::unique_ptr<KernelSet> kernels;  // of the lane that computes
  // Where the host does not reach the device's memory: kernels of the lane of transfers, and what carries
  // messages.
  std::unique_ptr<KernelSet> transfer_kernels;
  DeviceTransport transport;
};

// What device.kind says. With "cuda" the ranks of a machine take its devices in turn. Throws InputError where
// this build or this machine has no such device.
RankBackend make_backend(const Config& config, const Communicator& world);

}  // namespace trainer
