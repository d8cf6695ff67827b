#include "mesh/backend/local_channel.h"

#include <algorithm>
#include <exception>
#include <thread>

#include "kernels/error.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tetra {
namespace {

// Less work than this is done by whoever comes last: waking others would take longer.
constexpr int64_t kSmallWork = 128 << 10;
// As long as putting a thread to sleep and waking it takes.
constexpr std::chrono::microseconds kSpin{30};

void pause_core() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

std::string seconds(std::chrono::milliseconds time) {
  return fmt::format("{:g} s", static_cast<double>(time.count()) / 1000.0);
}

}  // namespace

LocalHub::LocalHub(int size)
    : size_(size), cores_(std::max(1, static_cast<int>(std::thread::hardware_concurrency()))) {}

std::shared_ptr<LocalChannel> LocalHub::channel(const std::vector<int>& ranks, int round,
                                                std::chrono::milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  const auto key = std::make_pair(ranks, round);
  auto found = joining_.find(key);
  if (found == joining_.end()) {
    auto channel = std::make_shared<LocalChannel>(ranks, *this, timeout);
    channels_.push_back(channel);
    found = joining_.emplace(key, Joining{channel, static_cast<int>(ranks.size())}).first;
  }
  std::shared_ptr<LocalChannel> channel = found->second.channel;
  if (--found->second.missing == 0) {
    joining_.erase(found);
  }
  return channel;
}

void LocalHub::abort(const std::string& message) {
  std::vector<std::weak_ptr<LocalChannel>> channels;
  {
    const std::lock_guard lock(mutex_);
    if (aborted_) {
      return;
    }
    message_ = message;
    aborted_.store(true, std::memory_order_release);
    channels = channels_;
  }
  for (const auto& weak : channels) {
    if (const auto channel = weak.lock()) {
      channel->wake_all();
    }
  }
}

LocalChannel::LocalChannel(std::vector<int> ranks, LocalHub& hub, std::chrono::milliseconds timeout)
    : ranks_(std::move(ranks)), hub_(hub), timeout_(timeout), calls_(ranks_.size(), 0) {}

void LocalChannel::set_timeout(std::chrono::milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  timeout_ = timeout;
}

std::shared_ptr<Exchange> LocalChannel::post(int party, Contribution contribution) {
  help(party);
  Lock lock(mutex_);
  const int64_t call = calls_[static_cast<size_t>(party)]++;
  std::shared_ptr<Exchange>& slot = open_[call];
  if (!slot) {
    slot = std::make_shared<Exchange>(ranks_);
  }
  std::shared_ptr<Exchange> exchange = slot;
  if (exchange->add(party, std::move(contribution))) {
    open_.erase(call);
    filled(lock, exchange, party);
  }
  return exchange;
}

std::shared_ptr<Exchange> LocalChannel::post_message(int sender, int receiver, int tag, bool is_sender,
                                                     Contribution contribution) {
  help(is_sender ? sender : receiver);
  Lock lock(mutex_);
  auto& counterparts = mail_[{sender, receiver, tag, is_sender}];
  if (counterparts.empty()) {
    auto exchange = std::make_shared<Exchange>(
        std::vector<int>{ranks_[static_cast<size_t>(sender)], ranks_[static_cast<size_t>(receiver)]});
    exchange->add(is_sender ? 0 : 1, std::move(contribution));
    mail_[{sender, receiver, tag, !is_sender}].push_back(exchange);
    return exchange;
  }
  std::shared_ptr<Exchange> exchange = std::move(counterparts.front());
  counterparts.pop_front();
  exchange->add(is_sender ? 0 : 1, std::move(contribution));
  filled(lock, exchange, is_sender ? 0 : 1);
  return exchange;
}

// All have come: checks that they mean the same, then shares out the work.
void LocalChannel::filled(Lock& lock, const std::shared_ptr<Exchange>& exchange, int party) {
  if (exchange->stage == Exchange::Stage::failed) {
    return;
  }
  std::string error = exchange->prepare();
  if (!error.empty()) {
    return fail(*exchange, std::move(error));
  }
  exchange->stage = Exchange::Stage::full;
  full_.push_back(exchange);
  if (exchange->work_bytes() <= kSmallWork) {
    work(lock, exchange, [&] { exchange->work_on_all(party); });
  } else {
    exchange->changed.notify_all();
  }
}

// Runs `pieces` without the lock and settles what follows from them.
template <typename Work>
void LocalChannel::work(Lock& lock, const std::shared_ptr<Exchange>& exchange, const Work& pieces) {
  ++exchange->active;
  lock.unlock();
  std::string error;
  try {
    pieces();
  } catch (const std::exception& e) {
    error = e.what();
  }
  lock.lock();
  if (!error.empty()) {
    fail(*exchange, fmt::format("{} of group {}: {}", exchange->title(), exchange->group(), error));
  } else if (exchange->all_done()) {
    complete(lock, *exchange);
  }
  --exchange->active;
  if (exchange->stage == Exchange::Stage::complete || (exchange->stopped && exchange->active == 0)) {
    exchange->changed.notify_all();
  }
}

// Lets go of the tensors before anyone's wait returns: whoever waited is then their only owner again.
void LocalChannel::complete(Lock& lock, Exchange& exchange) {
  if (exchange.stage != Exchange::Stage::full || exchange.releasing) {
    return;
  }
  exchange.releasing = true;
  std::vector<c10::Storage> tensors = exchange.release();
  lock.unlock();
  tensors.clear();
  lock.lock();
  if (exchange.stage == Exchange::Stage::full) {
    exchange.stage = Exchange::Stage::complete;
    retire(exchange);
  }
}

void LocalChannel::help(int party) {
  Lock lock(mutex_);
  for (size_t i = 0; i < full_.size();) {
    const std::shared_ptr<Exchange> exchange = full_[i];
    const bool mine = exchange->size() == static_cast<int>(ranks_.size()) && exchange->has_piece(party);
    if (mine && !exchange->stopped) {
      work(lock, exchange, [&] { exchange->work_on(party); });
      i = 0;  // the list may have changed meanwhile
    } else {
      ++i;
    }
  }
}

void LocalChannel::wait(const std::shared_ptr<Exchange>& exchange, int first_piece, std::chrono::milliseconds timeout) {
  using Stage = Exchange::Stage;
  if (exchange->stage == Stage::open) {
    spin_while(*exchange, Stage::open);
  }
  Lock lock(mutex_);
  if (timeout.count() <= 0) {
    timeout = timeout_;
  }
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    if (hub_.aborted()) {
      leave(lock, *exchange, hub_.message());
    }
    if (exchange->stage == Stage::failed) {
      leave(lock, *exchange, exchange->error);
    }
    if (exchange->stage == Stage::complete) {
      return;
    }
    const bool full = exchange->stage == Stage::full && !exchange->stopped;
    if (full && exchange->active < hub_.cores() && exchange->has_piece()) {
      work(lock, exchange, [&] { exchange->work_on_all(first_piece); });
    } else if (full && exchange->active > 0) {
      exchange->changed.wait(lock);  // others are at work on the last pieces
    } else if (exchange->changed.wait_until(lock, deadline) == std::cv_status::timeout &&
               exchange->stage == Stage::open) {
      fail(*exchange, time_out_message(*exchange, timeout));
    } else if (exchange->stopped && std::chrono::steady_clock::now() >= deadline) {
      fail(*exchange, time_out_message(*exchange, timeout));
    }
  }
}

// The caller's tensors may be freed after an exception, so nobody may be at work on them any more.
void LocalChannel::leave(Lock& lock, Exchange& exchange, std::string message) {
  exchange.stopped = true;
  exchange.changed.wait(lock, [&] { return exchange.active == 0; });
  throw Error(message);
}

void LocalChannel::withdraw(const std::shared_ptr<Exchange>& exchange, int party) {
  Lock lock(mutex_);
  if (exchange->stage == Exchange::Stage::full && !exchange->stopped) {
    lock.unlock();
    try {
      wait(exchange, party, {});  // all have come, so this ends soon
    } catch (const Error&) {
      // the rank fails anyway, with an error of its own
    }
    return;
  }
  if (exchange->stage != Exchange::Stage::complete) {
    exchange->stopped = true;
    exchange->withdrawn = party;
    exchange->changed.wait(lock, [&] { return exchange->active == 0; });
  }
}

void LocalChannel::fail(Exchange& exchange, std::string message) {
  exchange.error = std::move(message);
  exchange.stopped = true;
  exchange.stage = Exchange::Stage::failed;
  retire(exchange);
  exchange.changed.notify_all();
}

void LocalChannel::retire(const Exchange& exchange) {
  std::erase_if(full_, [&](const std::shared_ptr<Exchange>& other) { return other.get() == &exchange; });
}

void LocalChannel::wake_all() {
  const std::lock_guard lock(mutex_);
  for (const auto& [call, exchange] : open_) {
    exchange->changed.notify_all();
  }
  for (const auto& [key, queue] : mail_) {
    for (const auto& exchange : queue) {
      exchange->changed.notify_all();
    }
  }
  for (const auto& exchange : full_) {
    exchange->changed.notify_all();
  }
}

// Only where every rank has a core of its own: a spinning wait takes cores from the ranks that have work.
void LocalChannel::spin_while(const Exchange& exchange, Exchange::Stage stage) const {
  if (hub_.size() > hub_.cores()) {
    return;
  }
  const auto end = std::chrono::steady_clock::now() + kSpin;
  while (exchange.stage.load(std::memory_order_acquire) == stage && !hub_.aborted() &&
         std::chrono::steady_clock::now() < end) {
    pause_core();
  }
}

std::string LocalChannel::time_out_message(const Exchange& exchange, std::chrono::milliseconds timeout) const {
  return fmt::format("time-out of {} in {} of group {}: {}", seconds(timeout), exchange.title(), exchange.group(),
                     exchange.attendance());
}

}  // namespace tetra
