#pragma once
// The least a transport must do to carry our collectives: messages of bytes between the ranks of one group.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace tetra {

using Clock = std::chrono::steady_clock;

/// One message under way. Its memory must stay valid until test() or wait() has said that it is done.
class Transfer {
 public:
  virtual ~Transfer() = default;
  /// True once done; never blocks. Error when the message had another size than was asked for, or the peer is gone.
  virtual bool test() = 0;
  /// Blocks; false when `deadline` came first. For transports that cannot be polled.
  virtual bool wait(Clock::time_point deadline) = 0;
};

/// Which messages belong together: those of a pair arrive in order within one channel, and channels do not mix.
struct Channel {
  bool collective = true;  // collectives count by themselves, apart from the user's tags
  int64_t number = 0;
};

class Wire {
 public:
  virtual ~Wire() = default;
  virtual std::string name() const = 0;  // "mpi", "gloo"
  /// False: test() may stay false until wait() is called.
  virtual bool can_poll() const = 0;
  virtual std::unique_ptr<Transfer> send(const void* data, int64_t bytes, int peer, Channel channel) = 0;
  virtual std::unique_ptr<Transfer> receive(void* data, int64_t bytes, int peer, Channel channel) = 0;
};

}  // namespace tetra
