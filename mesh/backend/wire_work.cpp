// Operations under way and what drives them.

#include <sched.h>

#include <algorithm>
#include <set>
#include <thread>

#include "kernels/error.h"
#include "mesh/backend/wire_backend.h"

namespace tetra {
namespace {

// A rank with a core of its own spins this long before it sleeps: longer than most messages take.
constexpr auto kSpin = std::chrono::milliseconds(2);
constexpr int kPatientYields = 16;
constexpr auto kFirstSleep = std::chrono::microseconds(20);
constexpr auto kLongestSleep = std::chrono::microseconds(500);

/// Pauses between two polls, longer the longer the wait.
class Backoff {
 public:
  explicit Backoff(bool patient) : patient_(patient), start_(Clock::now()) {}

  void pause() {
    if (patient_ ? ++rounds_ <= kPatientYields : Clock::now() - start_ < kSpin) {
      sched_yield();
      return;
    }
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(sleep_ * 3 / 2, std::chrono::microseconds(kLongestSleep));
  }

 private:
  const bool patient_;
  const Clock::time_point start_;
  int rounds_ = 0;
  std::chrono::microseconds sleep_ = kFirstSleep;
};

}  // namespace

WireWork::WireWork(std::shared_ptr<Progress> progress, std::shared_ptr<Wire> wire, std::string what,
                   std::vector<int> ranks, std::chrono::milliseconds timeout, c10d::OpType type)
    : c10d::Work(-1, type),
      progress_(std::move(progress)),
      wire_(std::move(wire)),
      what_(std::move(what)),
      ranks_(std::move(ranks)),
      timeout_(timeout) {}

void WireWork::send(const void* data, int64_t bytes, int peer) {
  messages_.push_back({peer, true, wire_->send(data, bytes, peer, channel_)});
}

void WireWork::receive(void* data, int64_t bytes, int peer) {
  messages_.push_back({peer, false, wire_->receive(data, bytes, peer, channel_)});
}

bool WireWork::isCompleted() {
  return progress_->poll(*this);
}

bool WireWork::isSuccess() const {
  return done_;
}

bool WireWork::wait(std::chrono::milliseconds timeout) {
  progress_->finish(*this, timeout == kNoTimeout ? timeout_ : timeout);
  return true;
}

bool WireWork::messages_done(bool blocking, Clock::time_point deadline) {
  const auto is_done = [&](const Message& message) {
    try {
      return blocking ? message.transfer->wait(deadline) : message.transfer->test();
    } catch (const Error& error) {
      fail("{}: message {} rank {}: {}", what_, message.is_send ? "to" : "from", ranks_[message.peer], error.what());
    }
  };
  std::erase_if(messages_, is_done);
  return messages_.empty();
}

bool WireWork::advance(bool blocking, Clock::time_point deadline) {
  while (messages_done(blocking, deadline)) {
    if (next_stage_ == stages_.size()) {
      done_ = true;
      release();
      return true;
    }
    const Stage stage = std::move(stages_[next_stage_++]);
    stage(*this);
  }
  return false;
}

void WireWork::release() {
  stages_.clear();
  kept_.clear();
  next_stage_ = 0;
}

void WireWork::time_out(std::chrono::milliseconds timeout) const {
  std::set<int> missing;
  for (const Message& message : messages_) {
    missing.insert(ranks_[message.peer]);
  }
  fail("{}: timed out after {:.1f} s; no answer from {} {}. Has it ended, or is it waiting in another call?", what_,
       timeout.count() / 1e3, missing.size() == 1 ? "rank" : "ranks", fmt::join(missing, ", "));
}

void Progress::poll_all() {
  // A failed operation stays in the list: the transport may still write to its buffers.
  std::erase_if(active_, [](const c10::intrusive_ptr<WireWork>& work) {
    if (work->failure_) {
      return false;
    }
    try {
      return work->advance(false, {});
    } catch (...) {
      work->failure_ = std::current_exception();
      return false;
    }
  });
}

void Progress::post(const c10::intrusive_ptr<WireWork>& work) {
  const std::lock_guard lock(mutex_);
  active_.push_back(work);
  poll_all();
}

bool Progress::poll(WireWork& work) {
  const std::lock_guard lock(mutex_);
  poll_all();
  return work.done_ || work.failure_;
}

bool Progress::idle() {
  const std::lock_guard lock(mutex_);
  poll_all();
  return active_.empty();
}

void Progress::finish(WireWork& work, std::chrono::milliseconds timeout) {
  if (work.wire_->can_poll()) {
    finish_by_polling(work, timeout);
  } else {
    finish_by_blocking(work, timeout);
  }
  if (work.failure_) {
    std::rethrow_exception(work.failure_);
  }
}

void Progress::finish_by_polling(WireWork& work, std::chrono::milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  Backoff backoff(patient_);
  while (!poll(work)) {
    if (Clock::now() > deadline) {
      const std::lock_guard lock(mutex_);
      work.time_out(timeout);
    }
    backoff.pause();
  }
}

void Progress::finish_by_blocking(WireWork& work, std::chrono::milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  const std::lock_guard lock(mutex_);
  // Earlier collectives first: a peer may need this rank's part in them before it comes to this one.
  for (const c10::intrusive_ptr<WireWork>& other : active_) {
    if (work.done_ || work.failure_) {
      break;
    }
    if ((other.get() != &work && !other->channel_.collective) || other->failure_) {
      continue;
    }
    try {
      if (!other->advance(true, deadline)) {
        other->time_out(timeout);
      }
    } catch (...) {
      other->failure_ = std::current_exception();
      work.failure_ = other->failure_;
    }
  }
  std::erase_if(active_, [](const auto& other) { return other->done_; });
}

}  // namespace tetra
