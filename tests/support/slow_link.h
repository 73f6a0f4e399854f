// A network card of limited speed: what a rank sends over any of its communicators leaves one message after
// the other, in the order of sending.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/communicator.h"

namespace trainer::testing {

class SlowLink {
 public:
  using Time = std::chrono::steady_clock::time_point;
  explicit SlowLink(double bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  // When the message will have left. `urgent`: one of those whose waiting is looked at.
  Time send(size_t bytes, bool urgent) {
    const std::lock_guard lock(mutex_);
    const Time now = std::chrono::steady_clock::now();
    double ahead = 0;
    for (const auto& [begin, end] : background_)
      ahead += std::max(0.0, seconds(end - std::max(begin, now))) * bytes_per_second_;
    const Time begin = std::max(free_, now);
    free_ = begin + std::chrono::duration_cast<Time::duration>(
                        std::chrono::duration<double>(static_cast<double>(bytes) / bytes_per_second_));
    if (urgent)
      bytes_ahead_.push_back(ahead);
    else
      background_.emplace_back(begin, free_);
    while (!background_.empty() && background_.front().second < now) background_.pop_front();
    return free_;
  }

  // By urgent message: the bytes of others that had to leave before it.
  std::vector<double> bytes_ahead() const { return bytes_ahead_; }

 private:
  static double seconds(Time::duration d) { return std::chrono::duration<double>(d).count(); }

  const double bytes_per_second_;
  std::mutex mutex_;
  Time free_{};
  std::deque<std::pair<Time, Time>> background_;
  std::vector<double> bytes_ahead_;
};

// Hands a message to `inner` when it has left by the link.
class LinkedCommunicator : public Communicator {
 public:
  LinkedCommunicator(std::unique_ptr<Communicator> inner, SlowLink& link, bool urgent)
      : inner_(std::move(inner)), link_(link), urgent_(urgent) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::vector<int> nodes() const override { return inner_->nodes(); }

  RequestPtr send(const void* data, size_t bytes, int peer, int tag) override {
    auto message =
        std::make_shared<Message>(Message{data, bytes, peer, tag, link_.send(bytes, urgent_), nullptr});
    queue_.push_back(message);
    return std::make_unique<Sending>(*this, message);
  }
  RequestPtr receive(void* data, size_t bytes, int peer, int tag) override {
    return inner_->receive(data, bytes, peer, tag);
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<LinkedCommunicator>(inner_->split(color, key), link_, urgent_);
  }
  void barrier() override { inner_->barrier(); }
  void abort(const std::string& reason) override { inner_->abort(reason); }

 private:
  struct Message {
    const void* data;
    size_t bytes;
    int peer, tag;
    SlowLink::Time leaves;
    RequestPtr request;
  };
  class Sending : public Request {
   public:
    Sending(LinkedCommunicator& communicator, std::shared_ptr<Message> message)
        : communicator_(communicator), message_(std::move(message)) {}
    bool test() override {
      communicator_.progress();
      return message_->request && message_->request->test();
    }

   private:
    LinkedCommunicator& communicator_;
    std::shared_ptr<Message> message_;
  };

  void progress() {
    while (!queue_.empty() && queue_.front()->leaves <= std::chrono::steady_clock::now()) {
      Message& m = *queue_.front();
      m.request = inner_->send(m.data, m.bytes, m.peer, m.tag);
      queue_.pop_front();
    }
  }

  std::unique_ptr<Communicator> inner_;
  SlowLink& link_;
  const bool urgent_;
  std::deque<std::shared_ptr<Message>> queue_;
};

}  // namespace trainer::testing
