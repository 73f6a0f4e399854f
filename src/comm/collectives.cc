#include "comm/collectives.h"

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "comm/back_off.h"

namespace trainer {
namespace {

constexpr int kTag = kFirstReservedTag;

void send(Communicator& communicator, const void* data, size_t bytes, int peer) {
  wait(*communicator.send(data, bytes, peer, kTag));
}

void receive(Communicator& communicator, void* data, size_t bytes, int peer) {
  wait(*communicator.receive(data, bytes, peer, kTag));
}

// values[r] becomes rank r's value, for messages whose sizes every rank knows: out[r] of sizes[r] bytes.
void exchange(Communicator& communicator, const void* mine, size_t bytes, const std::vector<void*>& out,
              const std::vector<size_t>& sizes) {
  std::vector<RequestPtr> requests;
  const int size = communicator.size(), rank = communicator.rank();
  for (int step = 1; step < size; ++step) {
    const auto peer = static_cast<size_t>((rank + step) % size);
    requests.push_back(communicator.receive(out[peer], sizes[peer], static_cast<int>(peer), kTag));
  }
  for (int step = 1; step < size; ++step)
    requests.push_back(communicator.send(mine, bytes, (rank + step) % size, kTag));
  for (auto& request : requests) wait(*request);
  if (bytes > 0) std::memcpy(out[static_cast<size_t>(rank)], mine, bytes);
}

template <class Combine>
void combine_over_ranks(Communicator& communicator, std::span<double> values, Combine combine) {
  const std::string_view mine(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  const std::vector<std::string> all = all_gather_bytes(communicator, mine);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    require(all[rank].size() == mine.size(), "rank {} gave {} bytes of values, this one {}", rank,
            all[rank].size(), mine.size());
    for (size_t i = 0; i < values.size(); ++i) {
      double value;
      std::memcpy(&value, all[rank].data() + i * sizeof value, sizeof value);
      values[i] = rank == 0 ? value : combine(values[i], value);
    }
  }
}

}  // namespace

void wait(Request& request) {
  for (BackOff back_off; !request.test();) back_off.pause();
}

void broadcast(Communicator& communicator, void* data, size_t bytes, int root) {
  // A binomial tree over the distance from the root: each rank hears from the one whose distance lacks its
  // lowest set bit, and passes on below that bit.
  const int size = communicator.size();
  const int distance = (communicator.rank() - root + size) % size;
  const auto rank_at = [&](int d) { return (d + root) % size; };
  int bit = 1;
  while (bit < size && !(distance & bit)) bit *= 2;
  if (distance > 0) receive(communicator, data, bytes, rank_at(distance - bit));
  for (bit /= 2; bit > 0; bit /= 2)
    if (distance + bit < size) send(communicator, data, bytes, rank_at(distance + bit));
}

std::vector<std::string> gather(Communicator& communicator, std::string_view bytes, int root) {
  if (communicator.rank() != root) {
    const uint64_t length = bytes.size();
    send(communicator, &length, sizeof length, root);
    send(communicator, bytes.data(), bytes.size(), root);
    return {};
  }
  std::vector<std::string> all(static_cast<size_t>(communicator.size()));
  for (int rank = 0; rank < communicator.size(); ++rank) {
    std::string& part = all[static_cast<size_t>(rank)];
    if (rank == root) {
      part = bytes;
      continue;
    }
    uint64_t length = 0;
    receive(communicator, &length, sizeof length, rank);
    part.resize(length);
    receive(communicator, part.data(), length, rank);
  }
  return all;
}

std::vector<std::string> all_gather_bytes(Communicator& communicator, std::string_view bytes) {
  const auto size = static_cast<size_t>(communicator.size());
  std::vector<uint64_t> lengths(size);
  std::vector<void*> out(size);
  for (size_t rank = 0; rank < size; ++rank) out[rank] = &lengths[rank];
  const uint64_t mine = bytes.size();
  exchange(communicator, &mine, sizeof mine, out, std::vector<size_t>(size, sizeof mine));

  std::vector<std::string> all(size);
  for (size_t rank = 0; rank < size; ++rank) {
    all[rank].resize(lengths[rank]);
    out[rank] = all[rank].data();
  }
  exchange(communicator, bytes.data(), bytes.size(), out, lengths);
  return all;
}

void sum_over_ranks(Communicator& communicator, std::span<double> values) {
  combine_over_ranks(communicator, values, [](double a, double b) { return a + b; });
}

void max_over_ranks(Communicator& communicator, std::span<double> values) {
  combine_over_ranks(communicator, values,
                     [](double a, double b) { return std::isnan(a) || a >= b ? a : b; });
}

bool all_equal(Communicator& communicator, uint64_t value) {
  const std::string_view mine(reinterpret_cast<const char*>(&value), sizeof value);
  const std::vector<std::string> all = all_gather_bytes(communicator, mine);
  for (const auto& other : all)
    if (other != mine) return false;
  return true;
}

}  // namespace trainer
