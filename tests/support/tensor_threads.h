// Tensor-parallel ranks that are threads and read one another's memory: the plainest way to exchange, with
// sums in double in rank order.
#pragma once

#include <barrier>
#include <cstring>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "ops/element.h"
#include "ops/tensor_group.h"

namespace trainer {

class TensorThreads {
 public:
  explicit TensorThreads(int size) : size_(size), barrier_(size), data_(static_cast<size_t>(size)) {}

  // Calls body(group of the rank) on a thread per rank. An exception of any is thrown again, after all ended.
  void run(const std::function<void(TensorGroup&)>& body) {
    std::vector<std::exception_ptr> errors(static_cast<size_t>(size_));
    {
      std::vector<std::jthread> threads;
      for (int r = 0; r < size_; ++r)
        threads.emplace_back([&, r] {
          Rank group(*this, r);
          try {
            body(group);
          } catch (...) {
            errors[static_cast<size_t>(r)] = std::current_exception();
          }
        });
    }
    for (const auto& error : errors)
      if (error) std::rethrow_exception(error);
  }

  int64_t bytes_sent = 0;  // by rank 0, without all-reduce's being cut in two
  int exchanges = 0;       // of rank 0

 private:
  class Rank : public TensorGroup {
   public:
    Rank(TensorThreads& all, int rank) : all_(all), rank_(rank) {}
    int rank() const override { return rank_; }
    int size() const override { return all_.size_; }

    void all_gather(void* data, size_t bytes) override {
      note(static_cast<int64_t>(bytes) * (size() - 1));
      publish(data);
      for (int r = 0; r < size(); ++r)
        if (r != rank_)
          std::memcpy(at(data, r, bytes), at(all_.data_[static_cast<size_t>(r)], r, bytes), bytes);
      all_.barrier_.arrive_and_wait();
    }
    void reduce_scatter(Ref data, int64_t count) override {
      note(count * static_cast<int64_t>(size_of(data.dtype)) * (size() - 1));
      sum(data, rank_ * count, count);
    }
    void all_reduce(Ref data, int64_t count) override {
      note(2 * count * static_cast<int64_t>(size_of(data.dtype)) * (size() - 1) / size());
      sum(data, 0, count);
    }

   private:
    static std::byte* at(void* data, int r, size_t bytes) {
      return static_cast<std::byte*>(data) + static_cast<size_t>(r) * bytes;
    }
    void note(int64_t bytes) {
      if (rank_ != 0) return;
      all_.bytes_sent += bytes;
      ++all_.exchanges;
    }
    void publish(void* data) {
      all_.data_[static_cast<size_t>(rank_)] = data;
      all_.barrier_.arrive_and_wait();
    }
    void sum(Ref data, int64_t begin, int64_t count) {
      publish(data.data);
      std::vector<double> sums(static_cast<size_t>(count));
      for (void* other : all_.data_)
        for (int64_t i = 0; i < count; ++i)
          sums[static_cast<size_t>(i)] += load_element({other, data.dtype}, begin + i);
      all_.barrier_.arrive_and_wait();
      for (int64_t i = 0; i < count; ++i) store_element(data, begin + i, sums[static_cast<size_t>(i)]);
      all_.barrier_.arrive_and_wait();
    }
    TensorThreads& all_;
    int rank_;
  };

  int size_;
  std::barrier<> barrier_;
  std::vector<void*> data_;
};

}  // namespace trainer
