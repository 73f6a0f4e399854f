#include "comm/matched_communicator.h"

#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "base/error.h"
#include "comm/collectives.h"

namespace trainer {
namespace {

using MakeChannels = std::function<std::unique_ptr<DeviceChannels>(const Communicator&)>;

struct Offer {
  int64_t id = 0, bytes = 0;
};
struct GoAhead {
  int64_t id = 0;
  DeviceChannels::Invitation invitation{};
};

struct OfferedSend {
  const void* data = nullptr;
  int peer = 0;
  Offer offer;
  RequestPtr offering, transfer;
};

// What a communicator and its requests share.
struct Matching {
  Matching(std::unique_ptr<Communicator> communicator, std::unique_ptr<DeviceChannels> device_channels)
      : inner(std::move(communicator)), channels(std::move(device_channels)) {}

  // One for every send that waits, so that as many are expected as will come.
  void expect_go_ahead(int peer) {
    auto& expected = go_aheads[peer].emplace_back(std::make_unique<GoAhead>(), nullptr);
    expected.second = inner->receive(expected.first.get(), sizeof(GoAhead), peer, kMatchingTag);
  }

  // In the order in which they come, whichever send is asked about.
  void progress() {
    for (auto& [peer, expected] : go_aheads)
      while (!expected.empty() && expected.front().second->test()) {
        const GoAhead& go_ahead = *expected.front().first;
        const auto found = waiting.find(go_ahead.id);
        if (found != waiting.end()) {
          OfferedSend& send = *found->second;
          send.transfer =
              channels->send(send.data, static_cast<size_t>(send.offer.bytes), peer, go_ahead.invitation);
          waiting.erase(found);
        }
        expected.pop_front();
      }
  }

  std::unique_ptr<Communicator> inner;
  std::unique_ptr<DeviceChannels> channels;
  int64_t next_id = 1;
  std::map<int64_t, OfferedSend*> waiting;  // by id, for the go-ahead
  std::map<int, std::deque<std::pair<std::unique_ptr<GoAhead>, RequestPtr>>> go_aheads;  // by peer
};

class MatchedSend final : public Request {
 public:
  MatchedSend(std::shared_ptr<Matching> matching, const void* data, size_t bytes, int peer, int tag)
      : matching_(std::move(matching)) {
    send_.data = data;
    send_.peer = peer;
    send_.offer = {matching_->next_id++, static_cast<int64_t>(bytes)};
    send_.offering = matching_->inner->send(&send_.offer, sizeof send_.offer, peer, tag);
    if (bytes == 0) return;
    matching_->waiting[send_.offer.id] = &send_;
    matching_->expect_go_ahead(peer);
  }
  ~MatchedSend() override { matching_->waiting.erase(send_.offer.id); }
  MatchedSend(const MatchedSend&) = delete;
  MatchedSend& operator=(const MatchedSend&) = delete;

  bool test() override {
    matching_->progress();
    if (send_.offering && send_.offering->test()) send_.offering.reset();
    if (!transferred_ && send_.transfer) transferred_ = send_.transfer->test();
    return !send_.offering && (transferred_ || send_.offer.bytes == 0);
  }

 private:
  const std::shared_ptr<Matching> matching_;
  OfferedSend send_;
  bool transferred_ = false;
};

class MatchedReceive final : public Request {
 public:
  MatchedReceive(std::shared_ptr<Matching> matching, void* data, size_t bytes, int peer, int tag)
      : matching_(std::move(matching)), data_(data), bytes_(bytes), peer_(peer), tag_(tag) {
    arriving_ = matching_->inner->receive(&offer_, sizeof offer_, peer, tag);
  }

  bool test() override {
    matching_->progress();
    if (arriving_) {
      if (!arriving_->test()) return false;
      arriving_.reset();
      if (offer_.bytes != static_cast<int64_t>(bytes_))
        run_error("message from rank {} with tag {}: {} bytes were sent, {} expected", peer_, tag_,
                  offer_.bytes, bytes_);
      if (bytes_ > 0) go_ahead();
    }
    if (telling_ && telling_->test()) telling_.reset();
    if (transfer_ && transfer_->test()) transfer_.reset();
    return !telling_ && !transfer_;
  }

 private:
  void go_ahead() {
    answer_ = {offer_.id, matching_->channels->invite(peer_)};
    telling_ = matching_->inner->send(&answer_, sizeof answer_, peer_, kMatchingTag);
    transfer_ = matching_->channels->receive(data_, bytes_, peer_);
  }

  const std::shared_ptr<Matching> matching_;
  void* const data_;
  const size_t bytes_;
  const int peer_, tag_;
  Offer offer_;
  GoAhead answer_;
  RequestPtr arriving_, telling_, transfer_;
};

class MatchedCommunicator final : public Communicator {
 public:
  MatchedCommunicator(std::unique_ptr<Communicator> inner, MakeChannels make_channels)
      : make_channels_(std::move(make_channels)) {
    auto channels = make_channels_(*inner);
    matching_ = std::make_shared<Matching>(std::move(inner), std::move(channels));
  }
  int rank() const override { return matching_->inner->rank(); }
  int size() const override { return matching_->inner->size(); }
  std::vector<int> nodes() const override { return matching_->inner->nodes(); }
  RequestPtr send(const void* data, size_t bytes, int peer, int tag) override {
    return std::make_unique<MatchedSend>(matching_, data, bytes, peer, tag);
  }
  RequestPtr receive(void* data, size_t bytes, int peer, int tag) override {
    return std::make_unique<MatchedReceive>(matching_, data, bytes, peer, tag);
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return match_over_channels(matching_->inner->split(color, key), make_channels_);
  }
  void barrier() override { matching_->inner->barrier(); }
  void abort(const std::string& reason) override { matching_->inner->abort(reason); }

 private:
  const MakeChannels make_channels_;
  std::shared_ptr<Matching> matching_;
};

}  // namespace

std::unique_ptr<Communicator> match_over_channels(std::unique_ptr<Communicator> inner,
                                                  const MakeChannels& make_channels) {
  return std::make_unique<MatchedCommunicator>(std::move(inner), make_channels);
}

}  // namespace trainer
