#include "mesh/backend/wire_backend.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/error.h"
#include "mesh/backend/call_site.h"
#include "mesh/backend/ordered_reduce.h"

namespace tetra {
namespace {

using RedOpType = c10d::ReduceOp::RedOpType;

// Below this many bytes sent by a rank one stage is quicker than two with less in each.
constexpr int64_t kOneStageBytes = 32 << 10;
// Chunks start at multiples of this many elements, so that vector loads stay aligned.
constexpr int64_t kChunkAlignment = 64;

std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

int64_t size_of(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.nbytes());
}

void copy_bytes(void* to, const void* from, int64_t bytes) {
  if (bytes > 0 && to != from) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
}

ReduceOp reduce_op(RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::sum;
    case c10d::ReduceOp::MAX:
      return ReduceOp::max;
    case c10d::ReduceOp::MIN:
      return ReduceOp::min;
    default:
      fail("reduce operation {} is not supported; use sum, max or min", static_cast<int>(op));
  }
}

/// The elements of x that each rank of n sums up.
struct Chunks {
  int64_t count;
  int64_t step;
  Chunks(int64_t numel, int ranks) : count(numel) {
    const int64_t even = (numel + ranks - 1) / ranks;
    step = (even + kChunkAlignment - 1) / kChunkAlignment * kChunkAlignment;
  }
  int64_t begin(int rank) const { return std::min(rank * step, count); }
  int64_t size(int rank) const { return begin(rank + 1) - begin(rank); }
};

/// Where each rank's part of an all-to-all buffer begins, in bytes; one more entry for the end.
std::vector<int64_t> part_offsets(const at::Tensor& tensor, const std::vector<int64_t>& splits, int ranks,
                                  const char* which) {
  std::vector<int64_t> offsets(ranks + 1, 0);
  const int64_t rows = tensor.dim() > 0 ? tensor.size(0) : 1;
  if (splits.empty()) {
    require(tensor.numel() % ranks == 0, "all_to_all: {} ranks do not divide the {} elements of {}; give split sizes",
            ranks, tensor.numel(), which);
    for (int p = 1; p <= ranks; ++p) {
      offsets[p] = size_of(tensor) / ranks * p;
    }
    return offsets;
  }
  const int64_t sum = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  require(static_cast<int>(splits.size()) == ranks && sum == rows &&
              std::all_of(splits.begin(), splits.end(), [](int64_t split) { return split >= 0; }),
          "all_to_all: split sizes of {} are {}; needed: {} sizes that add up to its {} rows", which,
          fmt::join(splits, ", "), ranks, rows);
  const int64_t row_bytes = rows > 0 ? size_of(tensor) / rows : 0;
  for (int p = 0; p < ranks; ++p) {
    offsets[p + 1] = offsets[p] + splits[p] * row_bytes;
  }
  return offsets;
}

at::Tensor scratch(int64_t bytes) {
  return at::empty({bytes}, at::kByte);
}

/// Inputs in rank order: `own` at this rank's place, the others' one after another in `received`.
std::vector<const void*> in_rank_order(const void* own, const std::byte* received, int64_t stride, int rank,
                                       int ranks) {
  std::vector<const void*> inputs;
  for (int p = 0; p < ranks; ++p) {
    inputs.push_back(p == rank ? own : received + (p < rank ? p : p - 1) * stride);
  }
  return inputs;
}

}  // namespace

WireBackend::WireBackend(std::shared_ptr<Wire> wire, std::shared_ptr<Progress> progress, Place place)
    : c10d::Backend(place.rank, static_cast<int>(place.ranks.size())),
      wire_(std::move(wire)),
      progress_(std::move(progress)),
      place_(std::move(place)) {}

void WireBackend::check(const at::Tensor& tensor, const char* operation) const {
  require(tensor.device().is_cpu() && tensor.is_contiguous(),
          "{} on group '{}' ({}): needs a contiguous tensor on the CPU, got shape [{}], strides [{}], device {}",
          operation, place_.group, wire_->name(), fmt::join(tensor.sizes(), ", "), fmt::join(tensor.strides(), ", "),
          tensor.device().str());
}

WireBackend::Work WireBackend::make_work(const char* operation, c10d::OpType type, std::chrono::milliseconds timeout) {
  const CallSite& call = CallSite::current();
  auto what = fmt::format("{}{}{} on group '{}' ({}, rank {})", call.operation.empty() ? operation : call.operation,
                          call.site.empty() ? "" : " at ", call.site, call.group.empty() ? place_.group : call.group,
                          wire_->name(), place_.ranks[getRank()]);
  return c10::make_intrusive<WireWork>(progress_, wire_, std::move(what), place_.ranks,
                                       timeout < kNoTimeout ? place_.timeout : timeout, type);
}

WireBackend::Work WireBackend::begin(const char* operation, c10d::OpType type, std::chrono::milliseconds timeout) {
  Work work = make_work(operation, type, timeout);
  work->set_channel({true, sequence_++});
  return work;
}

c10::intrusive_ptr<c10d::Work> WireBackend::start(const Work& work) {
  progress_->post(work);
  return work;
}

void WireBackend::add_small_all_reduce(WireWork& work, const at::Tensor& x, RedOpType op) {
  const int n = getSize();
  const int rank = getRank();
  const at::Tensor received = scratch((n - 1) * size_of(x));
  work.keep(received);
  // The sum overwrites what is being sent, so it is taken once the messages are done.
  work.then([=](WireWork& w) {
    for (int p = 0, slot = 0; p < n; ++p) {
      if (p != rank) {
        w.receive(bytes_of(received) + slot++ * size_of(x), size_of(x), p);
        w.send(bytes_of(x), size_of(x), p);
      }
    }
  });
  work.then([=](WireWork&) {
    ordered_reduce(x.data_ptr(), in_rank_order(x.data_ptr(), bytes_of(received), size_of(x), rank, n), x.numel(),
                   x.scalar_type(), reduce_op(op));
  });
}

void WireBackend::add_large_all_reduce(WireWork& work, const at::Tensor& x, RedOpType op) {
  const int n = getSize();
  const int rank = getRank();
  const Chunks chunks(x.numel(), n);
  const int64_t item = x.element_size();
  const int64_t mine = chunks.size(rank) * item;
  const auto chunk = [=](int p) { return bytes_of(x) + chunks.begin(p) * item; };
  const at::Tensor received = scratch((n - 1) * mine);
  work.keep(received);
  work.then([=](WireWork& w) {
    for (int p = 0, slot = 0; p < n; ++p) {
      if (p != rank) {
        w.receive(bytes_of(received) + slot++ * mine, mine, p);
        w.send(chunk(p), chunks.size(p) * item, p);
      }
    }
  });
  work.then([=](WireWork& w) {
    ordered_reduce(chunk(rank), in_rank_order(chunk(rank), bytes_of(received), mine, rank, n), chunks.size(rank),
                   x.scalar_type(), reduce_op(op));
    for (int p = 0; p < n; ++p) {
      if (p != rank) {
        w.receive(chunk(p), chunks.size(p) * item, p);
        w.send(chunk(rank), mine, p);
      }
    }
  });
}

c10::intrusive_ptr<c10d::Work> WireBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const at::Tensor& x = tensors.at(0);
  check(x, "all_reduce");
  const RedOpType op = options.reduceOp;
  reduce_op(op);  // refuses what is not supported before anything is sent
  const Work work = begin("all_reduce", c10d::OpType::ALLREDUCE, options.timeout);
  work->keep(x);
  if (size_of(x) * (getSize() - 1) <= kOneStageBytes) {
    add_small_all_reduce(*work, x, op);
  } else {
    add_large_all_reduce(*work, x, op);
  }
  return start(work);
}

c10::intrusive_ptr<c10d::Work> WireBackend::_reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                                                                 const c10d::ReduceScatterOptions& options) {
  check(out, "reduce_scatter");
  check(in, "reduce_scatter");
  const int n = getSize();
  const int rank = getRank();
  require(in.numel() == n * out.numel() && in.scalar_type() == out.scalar_type(),
          "reduce_scatter on group '{}': the input has {} elements of {}, {} ranks times the output's {} of {} needed",
          place_.group, in.numel(), toString(in.scalar_type()), n, out.numel(), toString(out.scalar_type()));
  const ReduceOp op = reduce_op(options.reduceOp);
  const Work work = begin("reduce_scatter", c10d::OpType::_REDUCE_SCATTER_BASE, options.timeout);
  const int64_t part = size_of(out);
  const at::Tensor received = scratch((n - 1) * part);
  work->keep(received);
  work->keep(in);
  work->keep(out);
  work->then([=](WireWork& w) {
    for (int p = 0, slot = 0; p < n; ++p) {
      if (p != rank) {
        w.receive(bytes_of(received) + slot++ * part, part, p);
        w.send(bytes_of(in) + p * part, part, p);
      }
    }
  });
  // `out` may be this rank's part of `in`.
  work->then([=](WireWork&) {
    ordered_reduce(out.data_ptr(), in_rank_order(bytes_of(in) + rank * part, bytes_of(received), part, rank, n),
                   out.numel(), out.scalar_type(), op);
  });
  return start(work);
}

c10::intrusive_ptr<c10d::Work> WireBackend::_allgather_base(at::Tensor& out, at::Tensor& in,
                                                            const c10d::AllgatherOptions& options) {
  check(out, "all_gather");
  check(in, "all_gather");
  require(size_of(out) == getSize() * size_of(in),
          "all_gather on group '{}': the output has {} bytes, {} ranks times the input's {} needed", place_.group,
          size_of(out), getSize(), size_of(in));
  const Work work = begin("all_gather", c10d::OpType::_ALLGATHER_BASE, options.timeout);
  work->then([out, in, rank = getRank(), n = getSize()](WireWork& w) {
    const int64_t part = size_of(in);
    for (int p = 0; p < n; ++p) {
      if (p != rank) {
        w.receive(bytes_of(out) + p * part, part, p);
        w.send(bytes_of(in), part, p);
      }
    }
    copy_bytes(bytes_of(out) + rank * part, bytes_of(in), part);
  });
  work->keep(out);
  work->keep(in);
  return start(work);
}

c10::intrusive_ptr<c10d::Work> WireBackend::alltoall_base(at::Tensor& out, at::Tensor& in, Splits& out_splits,
                                                          Splits& in_splits, const c10d::AllToAllOptions& options) {
  check(out, "all_to_all");
  check(in, "all_to_all");
  const int rank = getRank();
  const std::vector<int64_t> to = part_offsets(out, out_splits, getSize(), "the output");
  const std::vector<int64_t> from = part_offsets(in, in_splits, getSize(), "the input");
  const int64_t own = from[rank + 1] - from[rank];
  require(own == to[rank + 1] - to[rank], "all_to_all on group '{}': rank {} gives itself {} bytes and expects {}",
          place_.group, place_.ranks[rank], own, to[rank + 1] - to[rank]);
  const Work work = begin("all_to_all", c10d::OpType::ALLTOALL_BASE, options.timeout);
  work->then([=, n = getSize()](WireWork& w) {
    for (int p = 0; p < n; ++p) {
      if (p != rank) {
        w.receive(bytes_of(out) + to[p], to[p + 1] - to[p], p);
        w.send(bytes_of(in) + from[p], from[p + 1] - from[p], p);
      }
    }
    copy_bytes(bytes_of(out) + to[rank], bytes_of(in) + from[rank], own);
  });
  work->keep(out);
  work->keep(in);
  return start(work);
}

c10::intrusive_ptr<c10d::Work> WireBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const at::Tensor& x = tensors.at(0);
  check(x, "broadcast");
  const int n = getSize();
  const int rank = getRank();
  const int root = static_cast<int>(options.rootRank);
  require(root >= 0 && root < n, "broadcast on group '{}': root {} is not below its {} ranks", place_.group, root, n);
  const Work work = begin("broadcast", c10d::OpType::BROADCAST, options.timeout);
  work->keep(x);
  const bool whole = size_of(x) <= kOneStageBytes;
  const Chunks chunks(size_of(x), n);
  const auto send_chunk = [=](WireWork& w, int p, int c) { w.send(bytes_of(x) + chunks.begin(c), chunks.size(c), p); };
  const auto receive_chunk = [=](WireWork& w, int p, int c) {
    w.receive(bytes_of(x) + chunks.begin(c), chunks.size(c), p);
  };
  // Small: the root sends it to all. Large: the root hands out chunks, and everyone hands his to the others, so that
  // no rank sends more than twice the size.
  work->then([=](WireWork& w) {
    for (int p = 0; p < n && rank == root; ++p) {
      if (p != root) {
        whole ? w.send(bytes_of(x), size_of(x), p) : send_chunk(w, p, p);
      }
    }
    if (rank != root) {
      whole ? w.receive(bytes_of(x), size_of(x), root) : receive_chunk(w, root, rank);
    }
  });
  if (!whole) {
    work->then([=](WireWork& w) {
      for (int p = 0; p < n; ++p) {
        if (p != rank && rank != root) {
          receive_chunk(w, p, p);
        }
        if (p != rank && p != root) {
          send_chunk(w, p, rank);
        }
      }
    });
  }
  return start(work);
}

WireBackend::Work WireBackend::begin_message(const char* operation, c10d::OpType type, int peer, int tag) {
  require(peer >= 0 && peer < getSize() && peer != getRank(),
          "{} on group '{}': position {} is no other rank of this group of {}", operation, place_.group, peer,
          getSize());
  require(tag >= 0, "{} on group '{}': tag {} is negative", operation, place_.group, tag);
  Work work = make_work(operation, type, c10d::kUnsetTimeout);
  work->set_channel({false, tag});
  return work;
}

c10::intrusive_ptr<c10d::Work> WireBackend::send(Tensors& tensors, int peer, int tag) {
  const at::Tensor x = tensors.at(0);
  check(x, "send");
  const Work work = begin_message("send", c10d::OpType::SEND, peer, tag);
  work->keep(x);
  work->then([=](WireWork& w) { w.send(bytes_of(x), size_of(x), peer); });
  return start(work);
}

c10::intrusive_ptr<c10d::Work> WireBackend::recv(Tensors& tensors, int peer, int tag) {
  const at::Tensor x = tensors.at(0);
  check(x, "receive");
  const Work work = begin_message("receive", c10d::OpType::RECV, peer, tag);
  work->keep(x);
  work->then([=](WireWork& w) { w.receive(bytes_of(x), size_of(x), peer); });
  return start(work);
}

c10::intrusive_ptr<c10d::Work> WireBackend::barrier(const c10d::BarrierOptions& options) {
  const Work work = begin("barrier", c10d::OpType::BARRIER, options.timeout);
  // Dissemination: after round k a rank has heard, directly or not, of the 2^(k+1) - 1 ranks before it.
  for (int distance = 1; distance < getSize(); distance *= 2) {
    work->then([distance, rank = getRank(), n = getSize()](WireWork& w) {
      w.receive(nullptr, 0, (rank - distance + n) % n);
      w.send(nullptr, 0, (rank + distance) % n);
    });
  }
  return start(work);
}

}  // namespace tetra
