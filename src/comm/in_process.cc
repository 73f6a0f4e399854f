#include "comm/in_process.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/philox.h"
#include "comm/number_nodes.h"

namespace trainer {
namespace {

// What all groups of one world share: the options and, once a rank has aborted, why.
class World {
 public:
  explicit World(const InProcessOptions& options) : options_(options) {}

  const InProcessOptions& options() const { return options_; }

  void poison(int rank, const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (poisoned_) return;
    reason_ = fmt::format("rank {} aborted the job: {}", rank, reason);
    poisoned_.store(true, std::memory_order_release);
  }
  bool poisoned() const { return poisoned_.load(std::memory_order_acquire); }
  void check() const {
    if (poisoned()) throw RunError(reason_);
  }

 private:
  const InProcessOptions options_;
  std::mutex mutex_;
  std::string reason_;  // written once, before poisoned_
  std::atomic<bool> poisoned_{false};
};

// Waits, with `lock` held, until `ready` or until the world is poisoned. Polls for the poison: aborting must
// not need the locks of every group.
template <class Ready>
void wait_for(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, const World& world,
              Ready ready) {
  while (!ready()) {
    world.check();
    changed.wait_for(lock, std::chrono::milliseconds(20));
  }
}

// One message: a posted send, a posted receive, or both once they have met. Whichever side claims the copy
// first makes it, in its test; kCopying keeps the other side from giving its buffer away meanwhile.
struct Message {
  enum State : int { kOpen, kCopying, kDone, kDropped };

  const int source, destination, tag;
  // Each half is set by its side before `matched`, under the mailbox's lock, and constant from then on.
  const std::byte* from = nullptr;
  size_t sent_bytes = 0;
  std::byte* to = nullptr;
  size_t received_bytes = 0;
  std::vector<std::byte> payload;  // what an eager send that found no receive posted left behind
  std::atomic<bool> matched{false};
  std::atomic<int> state{kOpen};

  Message(int source, int destination, int tag) : source(source), destination(destination), tag(tag) {}

  // True once the bytes are in the receiver's buffer. Throws when the two sides disagree or one has gone.
  bool deliver() {
    if (!matched.load(std::memory_order_acquire)) return false;
    if (sent_bytes != received_bytes)
      run_error("message from rank {} to rank {} with tag {}: {} bytes were sent, {} expected", source,
                destination, tag, sent_bytes, received_bytes);
    int seen = kOpen;
    if (state.compare_exchange_strong(seen, kCopying, std::memory_order_acq_rel)) {
      if (sent_bytes > 0) std::memcpy(to, from, sent_bytes);
      state.store(kDone, std::memory_order_release);
      return true;
    }
    if (seen == kDropped)
      run_error("message from rank {} to rank {} with tag {} was given up by its peer", source, destination,
                tag);
    return seen == kDone;
  }

  // When it returns, the peer does not touch the caller's buffer any more.
  void drop() {
    int seen = kOpen;
    while (!state.compare_exchange_weak(seen, kDropped, std::memory_order_acq_rel)) {
      if (seen == kDone || seen == kDropped) return;
      seen = kOpen;
      std::this_thread::yield();
    }
  }
};
using MessagePtr = std::shared_ptr<Message>;

struct Posted {
  MessagePtr message;
  uint64_t number = 0;    // how many the same side had posted before, with these ranks and this tag
  bool buffered = false;  // the sender's buffer is free at once
};

// Where the messages to one rank meet, per (source, tag), first with first.
class Mailbox {
 public:
  Posted post_send(int source, int destination, int tag, const void* data, size_t bytes, bool eager) {
    const std::lock_guard lock(mutex_);
    Channel& channel = channels_[{source, tag}];
    Posted posted{take(channel.receives), channel.sent++};
    const bool met = posted.message != nullptr;
    if (!met) channel.sends.push_back(posted.message = std::make_shared<Message>(source, destination, tag));
    Message& message = *posted.message;
    message.from = static_cast<const std::byte*>(data);
    message.sent_bytes = bytes;
    if (met) {
      message.matched.store(true, std::memory_order_release);
    } else if (eager) {
      message.payload.assign(message.from, message.from + bytes);
      message.from = message.payload.data();
      posted.buffered = true;
    }
    return posted;
  }

  Posted post_receive(int source, int destination, int tag, void* data, size_t bytes) {
    const std::lock_guard lock(mutex_);
    Channel& channel = channels_[{source, tag}];
    Posted posted{take(channel.sends), channel.received++};
    const bool met = posted.message != nullptr;
    if (!met)
      channel.receives.push_back(posted.message = std::make_shared<Message>(source, destination, tag));
    posted.message->to = static_cast<std::byte*>(data);
    posted.message->received_bytes = bytes;
    if (met) posted.message->matched.store(true, std::memory_order_release);
    return posted;
  }

 private:
  struct Channel {
    std::deque<MessagePtr> sends, receives;  // not yet met; one of the two is empty
    uint64_t sent = 0, received = 0;
  };

  static MessagePtr take(std::deque<MessagePtr>& queue) {
    if (queue.empty()) return nullptr;
    MessagePtr front = std::move(queue.front());
    queue.pop_front();
    return front;
  }

  std::mutex mutex_;
  std::map<std::pair<int, int>, Channel> channels_;
};

class InProcessRequest : public Request {
 public:
  InProcessRequest(std::shared_ptr<const World> world, Posted posted,
                   std::chrono::steady_clock::time_point not_before)
      : world_(std::move(world)), posted_(std::move(posted)), not_before_(not_before) {}
  ~InProcessRequest() override {
    if (posted_.message && !posted_.buffered) posted_.message->drop();
  }
  InProcessRequest(const InProcessRequest&) = delete;
  InProcessRequest& operator=(const InProcessRequest&) = delete;

  bool test() override {
    world_->check();
    if (!posted_.message) return true;
    if (not_before_ != std::chrono::steady_clock::time_point{} &&
        std::chrono::steady_clock::now() < not_before_)
      return false;
    if (!posted_.buffered && !posted_.message->deliver()) return false;
    posted_.message.reset();
    return true;
  }

 private:
  std::shared_ptr<const World> world_;
  Posted posted_;  // without a message: complete
  std::chrono::steady_clock::time_point not_before_;
};

// The ranks of one communicator.
class Group {
 public:
  // `nodes` by rank.
  Group(uint64_t key, const std::vector<int>& nodes)
      : key_(key), nodes_(number_nodes(nodes)), mailboxes_(nodes.size()), split_calls_(nodes.size()) {}

  int size() const { return static_cast<int>(mailboxes_.size()); }
  const std::vector<int>& nodes() const { return nodes_; }
  uint64_t key() const { return key_; }
  Mailbox& mailbox(int rank) { return mailboxes_[static_cast<size_t>(rank)]; }

  void barrier(const World& world) {
    std::unique_lock lock(mutex_);
    const uint64_t generation = barrier_generation_;
    if (++barrier_arrived_ == size()) {
      barrier_arrived_ = 0;
      ++barrier_generation_;
      changed_.notify_all();
      return;
    }
    wait_for(changed_, lock, world, [&] { return barrier_generation_ != generation; });
  }

  struct Member {
    std::shared_ptr<Group> group;
    int rank = 0;
  };

  // The n-th call of every rank belongs to one split; returns n.
  uint64_t join_split(int rank, int color, int key) {
    const std::lock_guard lock(mutex_);
    const uint64_t number = split_calls_[static_cast<size_t>(rank)]++;
    Split& split = splits_[number];
    split.calls.push_back({color, key, rank});
    if (split.calls.size() == mailboxes_.size()) {
      resolve(split, number);
      changed_.notify_all();
    }
    return number;
  }

  // Waits until every rank has joined; each rank asks once.
  Member resolved(const World& world, uint64_t number, int rank) {
    std::unique_lock lock(mutex_);
    wait_for(changed_, lock, world, [&] { return !splits_[number].members.empty(); });
    Split& split = splits_[number];
    Member member = std::move(split.members[static_cast<size_t>(rank)]);
    if (++split.asked == size()) splits_.erase(number);
    return member;
  }

 private:
  struct Call {
    int color, key, rank;
    auto operator<=>(const Call&) const = default;
  };
  struct Split {
    std::vector<Call> calls;
    std::vector<Member> members;  // by rank of this group; empty until all ranks have joined
    int asked = 0;
  };

  void resolve(Split& split, uint64_t number) {
    std::sort(split.calls.begin(), split.calls.end());
    split.members.resize(mailboxes_.size());
    for (size_t begin = 0, end = 0; begin < split.calls.size(); begin = end) {
      while (end < split.calls.size() && split.calls[end].color == split.calls[begin].color) ++end;
      const uint64_t key = Hasher().add(key_).add(number).add(split.calls[begin].color).value();
      std::vector<int> nodes;
      for (size_t i = begin; i < end; ++i) nodes.push_back(nodes_[static_cast<size_t>(split.calls[i].rank)]);
      const auto group = std::make_shared<Group>(key, nodes);
      for (size_t i = begin; i < end; ++i)
        split.members[static_cast<size_t>(split.calls[i].rank)] = {group, static_cast<int>(i - begin)};
    }
  }

  const uint64_t key_;  // tells the groups of a world apart when delays are drawn
  const std::vector<int> nodes_;
  std::vector<Mailbox> mailboxes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int barrier_arrived_ = 0;
  uint64_t barrier_generation_ = 0;
  std::vector<uint64_t> split_calls_;  // by rank
  std::map<uint64_t, Split> splits_;
};

class InProcessCommunicator : public Communicator {
 public:
  InProcessCommunicator(std::shared_ptr<World> world, int world_rank, Group::Member member)
      : world_(std::move(world)), world_rank_(world_rank), member_(std::move(member)) {}
  InProcessCommunicator(const InProcessCommunicator& parent, uint64_t split)
      : world_(parent.world_), world_rank_(parent.world_rank_), parent_(parent.member()), split_(split) {}

  int rank() const override { return member().rank; }
  int size() const override { return member().group->size(); }
  std::vector<int> nodes() const override { return member().group->nodes(); }

  RequestPtr send(const void* data, size_t bytes, int peer, int tag) override {
    check_peer(peer);
    const bool eager = world_->options().delivery == Delivery::kEager;
    Posted posted = group().mailbox(peer).post_send(rank(), peer, tag, data, bytes, eager);
    const auto when = not_before(rank(), peer, tag, 2 * posted.number);
    return std::make_unique<InProcessRequest>(world_, std::move(posted), when);
  }

  RequestPtr receive(void* data, size_t bytes, int peer, int tag) override {
    check_peer(peer);
    Posted posted = group().mailbox(rank()).post_receive(peer, rank(), tag, data, bytes);
    const auto when = not_before(peer, rank(), tag, 2 * posted.number + 1);
    return std::make_unique<InProcessRequest>(world_, std::move(posted), when);
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    world_->check();
    return std::make_unique<InProcessCommunicator>(*this, group().join_split(rank(), color, key));
  }

  void barrier() override {
    world_->check();
    group().barrier(*world_);
  }

  void abort(const std::string& reason) override { world_->poison(world_rank_, reason); }

 private:
  // Resolves a split at its first use; from then on constant.
  const Group::Member& member() const {
    if (!member_.group) member_ = parent_.group->resolved(*world_, split_, parent_.rank);
    return member_;
  }
  Group& group() const { return *member().group; }

  void check_peer(int peer) const {
    world_->check();
    require(peer >= 0 && peer < size(), "peer {} in a communicator of {} ranks", peer, size());
  }

  std::chrono::steady_clock::time_point not_before(int source, int destination, int tag,
                                                   uint64_t number) const {
    const FaultOptions& faults = world_->options().faults;
    if (faults.max_delay.count() <= 0) return {};
    const uint64_t stream = Hasher().add(group().key()).add(source).add(destination).add(tag).value();
    const double fraction = Philox(faults.seed).uniform(number, stream);
    return std::chrono::steady_clock::now() +
           std::chrono::duration_cast<std::chrono::steady_clock::duration>(fraction * faults.max_delay);
  }

  std::shared_ptr<World> world_;
  const int world_rank_;
  Group::Member parent_;  // of a split: where it is resolved
  uint64_t split_ = 0;
  mutable Group::Member member_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_in_process_group(int size, const InProcessOptions& options) {
  require(size >= 1, "an in-process group of {} ranks", size);
  const auto world = std::make_shared<World>(options);
  require(options.nodes.empty() || options.nodes.size() == static_cast<size_t>(size),
          "nodes of {} ranks for {}", options.nodes.size(), size);
  const auto group = std::make_shared<Group>(
      0, options.nodes.empty() ? std::vector<int>(static_cast<size_t>(size)) : options.nodes);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.push_back(std::make_unique<InProcessCommunicator>(world, rank, Group::Member{group, rank}));
  return ranks;
}

}  // namespace trainer
