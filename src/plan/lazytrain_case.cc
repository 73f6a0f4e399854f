#include "plan/lazytrain_case.h"

#include <cmath>

#include "base/units.h"

namespace trainer {
namespace {

constexpr int kLayers = 64;
constexpr double kForwardSeconds = 0.014, kWindowSeconds = 0.070;
constexpr double kHostLink = 12e9, kStorageWrite = 3.35e9, kStorageRead = 2.83e9;  // bytes per second

TransferWindows windows(double rate, int count) {
  return {rate, std::vector<int64_t>(static_cast<size_t>(count), std::llround(rate * kWindowSeconds)), {}};
}

}  // namespace

CheckpointProblem lazytrain_27b() {
  CheckpointProblem p;
  p.boundary_bytes.assign(kLayers + 1, int64_t{72} * 1024 * 5120 * 2);
  p.forward_seconds.assign(kLayers, kForwardSeconds);
  p.device_bytes = std::llround(21.55 * kGiB);
  p.host_bytes = std::llround(15 * kGiB);
  p.storage_bytes = std::llround(32 * kGiB);
  p.forward_to_host = p.forward_to_device = windows(kHostLink, kLayers);
  p.backward_to_host = p.backward_to_device = windows(kHostLink, kLayers + 1);
  p.storage_write = windows(kStorageWrite, kLayers);
  p.storage_read = windows(kStorageRead, kLayers + 1);
  return p;
}

std::vector<BoundaryHome> lazytrain_27b_homes() {
  std::vector<BoundaryHome> homes(kLayers + 1, BoundaryHome::kDevice);
  for (int i : {6, 17, 18, 19, 25, 37, 45, 46, 47, 53, 54, 55, 61})
    homes[static_cast<size_t>(i)] = BoundaryHome::kRecomputed;
  for (int i : {1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 14, 26, 27, 30, 31, 33, 34, 35, 38, 49})
    homes[static_cast<size_t>(i)] = BoundaryHome::kHost;
  homes[21] = BoundaryHome::kStorage;
  return homes;
}

}  // namespace trainer
