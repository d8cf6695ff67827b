#include "mesh/backend/mpi.h"

// Of MPI only the C interface is used; its C++ one would need a library of its own.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>

#include "kernels/error.h"
#include "mesh/backend/wire_backend.h"
#include "mesh/fabric.h"
#include "mesh/rendezvous.h"

namespace tetra {
namespace {

// MPI counts bytes in int: larger messages travel in pieces of this size.
constexpr int64_t kPieceBytes = int64_t{1} << 30;

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) {
    return;
  }
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  int kind = 0;
  MPI_Error_class(code, &kind);
  require(kind != MPI_ERR_TRUNCATE, "it is larger than was asked for; ranks disagree on the size of this operation");
  fail("{}: {}", call, std::string(text, static_cast<size_t>(length)));
}

/// MPI from its start to its end. Lives as long as anything that uses it.
class Session {
 public:
  Session() {
    int flag = 0;
    MPI_Finalized(&flag);
    require(!flag, "MPI has been finalised in this process and cannot be started again; keep the first fabric instead");
    MPI_Initialized(&flag);
    if (!flag) {
      int provided = 0;
      check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
      owner_ = true;
    }
    int level = MPI_THREAD_SINGLE;
    MPI_Query_thread(&level);
    require(level >= MPI_THREAD_FUNNELED, "MPI was initialised without thread support; ask for MPI_THREAD_SERIALIZED");
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &world_), "MPI_Comm_dup");
    check_mpi(MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }

  ~Session() {
    if (orderly_ && owner_ && std::uncaught_exceptions() == 0) {
      MPI_Finalize();
    }
  }

  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  MPI_Comm world() const { return world_; }
  void set_disorderly() { orderly_ = false; }

 private:
  bool owner_ = false;
  std::atomic<bool> orderly_ = true;
  MPI_Comm world_ = MPI_COMM_NULL;
};

/// The pieces of one message.
class MpiTransfer : public Transfer {
 public:
  explicit MpiTransfer(int64_t bytes) : bytes_(bytes) {}

  /// Calls post(offset, length, request) for each piece; an empty message is one empty piece.
  template <typename Post>
  void post_pieces(const Post& post) {
    int64_t offset = 0;
    do {
      const int64_t length = std::min(bytes_ - offset, kPieceBytes);
      post(offset, static_cast<int>(length), &requests_.emplace_back(MPI_REQUEST_NULL));
      offset += length;
    } while (offset < bytes_);
  }

  bool test() override {
    while (done_ < requests_.size()) {
      int flag = 0;
      MPI_Status status;
      check_mpi(MPI_Test(&requests_[done_], &flag, &status), "MPI_Test");
      if (!flag) {
        return false;
      }
      check_size(status);
      ++done_;
    }
    return true;
  }

  bool wait(Clock::time_point deadline) override {
    while (!test()) {
      if (Clock::now() > deadline) {
        return false;
      }
    }
    return true;
  }

  void set_receives() { receives_ = true; }

 private:
  void check_size(const MPI_Status& status) const {
    const int64_t expected = std::min(bytes_ - static_cast<int64_t>(done_) * kPieceBytes, kPieceBytes);
    int count = 0;
    if (receives_ && MPI_Get_count(&status, MPI_BYTE, &count) == MPI_SUCCESS) {
      require(count == expected, "it has {} bytes where {} are expected; ranks disagree on the size of this operation",
              count, expected);
    }
  }

  const int64_t bytes_;
  bool receives_ = false;
  std::vector<MPI_Request> requests_;
  size_t done_ = 0;
};

/// One communicator.
class MpiWire : public Wire {
 public:
  MpiWire(std::shared_ptr<Session> session, MPI_Comm comm) : session_(std::move(session)), comm_(comm) {
    check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    void* bound = nullptr;
    int found = 0;
    check_mpi(MPI_Comm_get_attr(comm_, MPI_TAG_UB, &bound, &found), "MPI_Comm_get_attr");
    // Half of the tags for collectives, which take them in turn, half for the user.
    tags_ = (found ? static_cast<int64_t>(*static_cast<int*>(bound)) + 1 : 32768) / 2;
  }

  std::string name() const override { return "mpi"; }
  bool can_poll() const override { return true; }

  std::unique_ptr<Transfer> send(const void* data, int64_t bytes, int peer, Channel channel) override {
    auto transfer = std::make_unique<MpiTransfer>(bytes);
    transfer->post_pieces([&](int64_t offset, int length, MPI_Request* request) {
      check_mpi(
          MPI_Isend(static_cast<const char*>(data) + offset, length, MPI_BYTE, peer, tag(channel), comm_, request),
          "MPI_Isend");
    });
    return transfer;
  }

  std::unique_ptr<Transfer> receive(void* data, int64_t bytes, int peer, Channel channel) override {
    auto transfer = std::make_unique<MpiTransfer>(bytes);
    transfer->set_receives();
    transfer->post_pieces([&](int64_t offset, int length, MPI_Request* request) {
      check_mpi(MPI_Irecv(static_cast<char*>(data) + offset, length, MPI_BYTE, peer, tag(channel), comm_, request),
                "MPI_Irecv");
    });
    return transfer;
  }

 private:
  int tag(Channel channel) const {
    if (channel.collective) {
      return static_cast<int>(channel.number % tags_);
    }
    require(channel.number < tags_, "tag {} is too large for this MPI; use tags below {}", channel.number, tags_);
    return static_cast<int>(tags_ + channel.number);
  }

  // The communicator is left to MPI_Finalize: freeing it is collective, and ranks let groups go in any order.
  std::shared_ptr<Session> session_;
  MPI_Comm comm_;
  int64_t tags_;
};

class MpiFabric : public Fabric {
 public:
  explicit MpiFabric(const Place& place) : session_(std::make_shared<Session>()) {
    MPI_Comm_rank(session_->world(), &rank_);
    MPI_Comm_size(session_->world(), &size_);
    check_place(place);
    MPI_Comm local = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split_type(session_->world(), MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &local),
              "MPI_Comm_split_type");
    MPI_Comm_rank(local, &local_rank_);
    MPI_Comm_size(local, &local_size_);
    MPI_Comm_free(&local);
    progress_ = std::make_shared<Progress>(local_size_ > sysconf(_SC_NPROCESSORS_ONLN));
  }

  ~MpiFabric() override {
    if (std::uncaught_exceptions() > 0 || !progress_->idle()) {
      session_->set_disorderly();
    }
  }

  std::string name() const override { return "mpi"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return local_rank_; }
  int local_size() const override { return local_size_; }

  c10::intrusive_ptr<c10d::Backend> make_group(const std::vector<int>& ranks, const std::string& name,
                                               std::chrono::milliseconds timeout) override {
    const auto place = std::find(ranks.begin(), ranks.end(), rank_);
    require(place != ranks.end() && ranks.size() > 1 && std::is_sorted(ranks.begin(), ranks.end()) &&
                ranks.front() >= 0 && ranks.back() < size_,
            "group '{}': its ranks are {}; needed: at least two of 0 to {}, ascending, rank {} among them", name,
            fmt::join(ranks, ", "), size_ - 1, rank_);
    auto wire = std::make_shared<MpiWire>(session_, make_communicator(ranks));
    return c10::make_intrusive<WireBackend>(
        wire, progress_, WireBackend::Place{name, ranks, static_cast<int>(place - ranks.begin()), timeout});
  }

  void abort(const std::string& message) noexcept override {
    if (aborted_.exchange(true)) {
      return;
    }
    session_->set_disorderly();
    std::fflush(stdout);
    std::fprintf(stderr, "tetra: error: %s\n", message.c_str());
    std::fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
    std::_Exit(1);
  }

 private:
  void check_place(const Place& place) const {
    require(
        place.rank == rank_ && place.world_size == size_,
        "the environment ({}) says rank {} of {}, but MPI says rank {} of {}; start with mpirun of the MPI that Tetra "
        "was built with, or with srun --mpi=pmix (or --mpi=pmi2)",
        place.source, place.rank, place.world_size, rank_, size_);
  }

  MPI_Comm make_communicator(const std::vector<int>& ranks) const {
    MPI_Group world = MPI_GROUP_NULL;
    MPI_Group members = MPI_GROUP_NULL;
    MPI_Comm comm = MPI_COMM_NULL;
    check_mpi(MPI_Comm_group(session_->world(), &world), "MPI_Comm_group");
    check_mpi(MPI_Group_incl(world, static_cast<int>(ranks.size()), ranks.data(), &members), "MPI_Group_incl");
    check_mpi(MPI_Comm_create_group(session_->world(), members, 0, &comm), "MPI_Comm_create_group");
    MPI_Group_free(&members);
    MPI_Group_free(&world);
    return comm;
  }

  std::shared_ptr<Session> session_;
  std::shared_ptr<Progress> progress_;
  std::atomic<bool> aborted_ = false;
  int rank_ = 0;
  int size_ = 1;
  int local_rank_ = 0;
  int local_size_ = 1;
};

}  // namespace

std::shared_ptr<Fabric> make_mpi_fabric(const Place& place) {
  return std::make_shared<MpiFabric>(place);
}

}  // namespace tetra
