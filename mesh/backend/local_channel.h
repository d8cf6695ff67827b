#pragma once
// Where thread ranks meet: matches their calls, hands out the work, lets them wait, and spreads failures.

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "mesh/backend/local_exchange.h"

namespace tetra {

class LocalChannel;

/// What all rank threads of one fabric share.
class LocalHub {
 public:
  explicit LocalHub(int size);

  int size() const { return size_; }
  int cores() const { return cores_; }

  /// The channel of the `round`-th group made for these ranks. The first rank to ask makes it; it is forgotten here
  /// once all have it.
  std::shared_ptr<LocalChannel> channel(const std::vector<int>& ranks, int round, std::chrono::milliseconds timeout);

  /// The first message stays. Every present and later wait throws it.
  void abort(const std::string& message);
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }
  const std::string& message() const { return message_; }  // only once aborted

 private:
  struct Joining {
    std::shared_ptr<LocalChannel> channel;
    int missing;
  };

  const int size_;
  const int cores_;
  std::mutex mutex_;
  std::map<std::pair<std::vector<int>, int>, Joining> joining_;
  std::vector<std::weak_ptr<LocalChannel>> channels_;
  std::atomic<bool> aborted_ = false;
  std::string message_;
};

/// One group of ranks. Calls match in the order in which each rank makes them; messages by sender, receiver and tag.
class LocalChannel {
 public:
  LocalChannel(std::vector<int> ranks, LocalHub& hub, std::chrono::milliseconds timeout);

  /// Never blocks. First does this rank's own part of every older operation that all ranks have joined.
  std::shared_ptr<Exchange> post(int party, Contribution contribution);
  std::shared_ptr<Exchange> post_message(int sender, int receiver, int tag, bool is_sender, Contribution contribution);

  /// Returns when the whole operation is complete; works on it meanwhile. Throws Error when it failed, when `timeout`
  /// (or the channel's, if zero) has passed and some rank did not come, or when the hub was aborted.
  void wait(const std::shared_ptr<Exchange>& exchange, int first_piece, std::chrono::milliseconds timeout);

  /// A rank unwinds and will free its tensors: nobody touches them after this returns.
  void withdraw(const std::shared_ptr<Exchange>& exchange, int party);

  void wake_all();
  void set_timeout(std::chrono::milliseconds timeout);

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Mail = std::tuple<int, int, int, bool>;  // sender, receiver, tag, waits for its sender

  void help(int party);
  void filled(Lock& lock, const std::shared_ptr<Exchange>& exchange, int party);
  template <typename Work>
  void work(Lock& lock, const std::shared_ptr<Exchange>& exchange, const Work& pieces);
  void complete(Lock& lock, Exchange& exchange);
  void fail(Exchange& exchange, std::string message);
  void retire(const Exchange& exchange);
  [[noreturn]] void leave(Lock& lock, Exchange& exchange, std::string message);
  void spin_while(const Exchange& exchange, Exchange::Stage stage) const;
  std::string time_out_message(const Exchange& exchange, std::chrono::milliseconds timeout) const;

  const std::vector<int> ranks_;
  LocalHub& hub_;
  std::mutex mutex_;
  std::chrono::milliseconds timeout_;
  std::vector<int64_t> calls_;                         // made by each rank
  std::map<int64_t, std::shared_ptr<Exchange>> open_;  // by call number: some rank has not come yet
  std::map<Mail, std::deque<std::shared_ptr<Exchange>>> mail_;
  std::vector<std::shared_ptr<Exchange>> full_;  // all ranks came, work is left
};

}  // namespace tetra
