#include "mesh/collectives.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "kernels/error.h"
#include "mesh/backend/call_site.h"
#include "mesh/fingerprint.h"
#include "mesh/group.h"
#include "mesh/ledger.h"

namespace tetra {
namespace {

using Work = c10::intrusive_ptr<c10d::Work>;

// One call of a collective: where it happens, for errors, counters and debug mode.
class Call {
 public:
  Call(const char* operation, std::string_view site, const Group& group)
      : operation_(operation), site_(site), group_(group) {}

  std::string name() const { return fmt::format("{} '{}' of group {}", operation_, site_, group_.name()); }
  const Group& group() const { return group_; }
  bool alone() const { return group_.size() == 1; }
  bool dropped() const {
    const std::string& dropped = group_.ledger().dropped_site;
    return !dropped.empty() && dropped == site_;
  }

  template <typename... Args>
  void check(bool holds, fmt::format_string<Args...> format, Args&&... args) const {
    if (!holds) {
      throw Error(name() + ": " + fmt::format(format, std::forward<Args>(args)...));
    }
  }
  void check_tensor(const at::Tensor& x, const char* what) const;
  void check_pair(const at::Tensor& out, const at::Tensor& in) const;
  void check_reducible(const at::Tensor& x) const;
  void check_peer(int peer, const char* what) const;

  void count(int64_t bytes) const { group_.ledger().add({group_.name(), operation_, std::string(site_)}, bytes); }

  /// Debug mode's comparison; `details` is what must be equal on all ranks.
  void compare(const std::string& details) const;
  void compare(const at::Tensor& x, const std::string& details = "") const;
  void compare(const std::vector<int64_t>& in_splits, const std::vector<int64_t>& out_splits) const;

  /// Calls the backend, whose errors can then name this call.
  template <typename Start>
  Pending start(const Start& start_work) const;

  std::unique_ptr<Pending::State> state(Work work) const;

 private:
  const char* operation_;
  std::string_view site_;
  const Group& group_;
};

std::string describe(const at::Tensor& x) {
  return fmt::format("{} [{}]", c10::toString(x.scalar_type()), fmt::join(x.sizes().vec(), ", "));
}

int64_t bytes_of(const at::Tensor& x) {
  return x.numel() * static_cast<int64_t>(x.element_size());
}

const char* reduce_name(ReduceOp op) {
  return op == ReduceOp::sum ? "sum" : op == ReduceOp::max ? "max" : "min";
}

c10d::ReduceOp backend_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::max:
      return c10d::ReduceOp::MAX;
    case ReduceOp::min:
      return c10d::ReduceOp::MIN;
  }
  fail("reduction {} does not exist", static_cast<int>(op));
}

// Flat copy on any device, without autograd.
void copy_flat(at::Tensor to, const at::Tensor& from) {
  if (to.numel() > 0 && to.data_ptr() != from.data_ptr()) {
    const at::NoGradGuard no_grad;
    to.view({-1}).copy_(from.view({-1}));
  }
}

at::Tensor flat_part(const at::Tensor& x, int64_t begin, int64_t length) {
  const at::NoGradGuard no_grad;
  return x.view({-1}).narrow(0, begin, length);
}

// What a dropped collective leaves: this rank's own part, and zeros.
void keep_own_part(at::Tensor& out, int64_t begin, const at::Tensor& own) {
  const at::NoGradGuard no_grad;
  const at::Tensor saved = own.clone();  // `own` may lie inside `out`
  out.zero_();
  copy_flat(flat_part(out, begin, saved.numel()), saved);
}

}  // namespace

struct Pending::State {
  Work work;
  std::string operation;
  std::string site;
  std::string group;
  int exceptions = std::uncaught_exceptions();

  // A rank that unwinds must not wait for ranks that may be waiting for it.
  bool unwinding() const { return std::uncaught_exceptions() > exceptions; }
};

Pending::Pending() = default;
Pending::Pending(std::unique_ptr<State> state) : state_(std::move(state)) {}
Pending::Pending(Pending&&) noexcept = default;

Pending& Pending::operator=(Pending&& other) noexcept {
  Pending finished(std::move(*this));
  state_ = std::move(other.state_);
  return *this;
}

Pending::~Pending() {
  if (!state_) {
    return;
  }
  try {
    if (state_->unwinding()) {
      state_->work->abort();
    } else {
      wait();
    }
  } catch (...) {
    // nowhere to report it: the rank's next wait fails too
  }
}

void Pending::wait() {
  if (!state_) {
    return;
  }
  const std::unique_ptr<State> state = std::move(state_);
  try {
    state->work->wait();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {  // libtorch's own backends
    fail("{} '{}' of group {}: {}", state->operation, state->site, state->group, e.what());
  }
}

namespace {

void Call::check_tensor(const at::Tensor& x, const char* what) const {
  check(x.defined(), "{} is undefined", what);
  check(x.layout() == c10::kStrided, "{} is not a dense tensor", what);
  check(x.is_contiguous(), "{} of shape [{}] and strides [{}] is not contiguous; pass a contiguous tensor", what,
        fmt::join(x.sizes().vec(), ", "), fmt::join(x.strides().vec(), ", "));
}

void Call::check_pair(const at::Tensor& out, const at::Tensor& in) const {
  check_tensor(out, "out");
  check_tensor(in, "in");
  check(out.scalar_type() == in.scalar_type(), "out is {}, in is {}; use one type", c10::toString(out.scalar_type()),
        c10::toString(in.scalar_type()));
  check(out.device() == in.device(), "out is on {}, in is on {}; use one device", out.device().str(),
        in.device().str());
}

void Call::check_reducible(const at::Tensor& x) const {
  const at::ScalarType type = x.scalar_type();
  const bool known = type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf ||
                     c10::isIntegralType(type, true);
  check(known, "{} cannot be reduced; use float, double, bfloat16, half, an integer type or bool", c10::toString(type));
}

void Call::check_peer(int peer, const char* what) const {
  check(peer >= 0 && peer < group_.size() && peer != group_.rank(),
        "{} {} is not another position in the group of {} ranks (this rank is {})", what, peer, group_.size(),
        group_.rank());
}

void Call::compare(const std::string& details) const {
  Ledger& ledger = group_.ledger();
  if (!ledger.debug) {
    return;
  }
  const CallSiteScope scope({operation_, site_, group_.name()});
  compare_fingerprints(group_, fmt::format("call {} {} '{}' of group {}{}{}", ledger.next_call(group_.name()),
                                           operation_, site_, group_.name(), details.empty() ? "" : " ", details));
}

void Call::compare(const at::Tensor& x, const std::string& details) const {
  if (group_.ledger().debug) {
    compare(details + (details.empty() ? "" : " ") + describe(x));
  }
}

void Call::compare(const std::vector<int64_t>& in_splits, const std::vector<int64_t>& out_splits) const {
  if (group_.ledger().debug) {
    const CallSiteScope scope({operation_, site_, group_.name()});
    compare_splits(group_, fmt::format("{} '{}'", operation_, site_), in_splits, out_splits);
  }
}

std::unique_ptr<Pending::State> Call::state(Work work) const {
  auto result = std::make_unique<Pending::State>();
  result->work = std::move(work);
  result->operation = operation_;
  result->site = site_;
  result->group = group_.name();
  return result;
}

template <typename Start>
Pending Call::start(const Start& start_work) const {
  const CallSiteScope scope({operation_, site_, group_.name()});
  try {
    return Pending(state(start_work(*group_.backend())));
  } catch (const Error& e) {
    throw Error(name() + ": " + e.what());
  } catch (const std::exception& e) {
    fail("{}: {}", name(), e.what());
  }
}

// all_to_all's splits in elements of dim 0; none given means equal parts.
std::vector<int64_t> full_splits(const Call& call, const at::Tensor& x, const std::vector<int64_t>& splits,
                                 const char* what) {
  const int64_t n = call.group().size();
  call.check(x.dim() > 0, "{} is a scalar", what);
  const int64_t rows = x.size(0);
  if (splits.empty()) {
    call.check(rows % n == 0, "dim 0 of {} has {} elements, which {} ranks do not divide; pass splits", what, rows, n);
    return std::vector<int64_t>(static_cast<size_t>(n), rows / n);
  }
  call.check(static_cast<int64_t>(splits.size()) == n, "{} splits given for {}, the group has {} ranks", splits.size(),
             what, n);
  int64_t sum = 0;
  for (int64_t split : splits) {
    call.check(split >= 0, "split {} for {} is negative", split, what);
    sum += split;
  }
  call.check(sum == rows, "splits [{}] add up to {}, dim 0 of {} has {} elements", fmt::join(splits, ", "), sum, what,
             rows);
  return splits;
}

int64_t offset_of(const std::vector<int64_t>& splits, int position) {
  int64_t offset = 0;
  for (int i = 0; i < position; ++i) {
    offset += splits[static_cast<size_t>(i)];
  }
  return offset;
}

int64_t row_numel(const at::Tensor& x) {
  return x.size(0) == 0 ? 0 : x.numel() / x.size(0);
}

}  // namespace

Pending all_reduce_async(at::Tensor& x, const Group& group, std::string_view site, ReduceOp op) {
  const Call call("all_reduce", site, group);
  call.check_tensor(x, "x");
  call.check_reducible(x);
  if (call.alone() || call.dropped()) {
    return Pending();
  }
  call.compare(x, reduce_name(op));
  call.count(2 * bytes_of(x) * (group.size() - 1) / group.size());
  return call.start([&](c10d::Backend& backend) {
    std::vector<at::Tensor> tensors = {x};
    c10d::AllreduceOptions options;
    options.reduceOp = backend_op(op);
    return backend.allreduce(tensors, options);
  });
}

void all_reduce(at::Tensor& x, const Group& group, std::string_view site, ReduceOp op) {
  all_reduce_async(x, group, site, op).wait();
}

Pending all_gather_async(at::Tensor& out, const at::Tensor& in, const Group& group, std::string_view site) {
  const Call call("all_gather", site, group);
  call.check_pair(out, in);
  call.check(out.numel() == in.numel() * group.size(), "out has {} elements; it needs {} x {} = {}", out.numel(),
             group.size(), in.numel(), in.numel() * group.size());
  if (call.alone()) {
    copy_flat(out, in);
    return Pending();
  }
  if (call.dropped()) {
    keep_own_part(out, group.rank() * in.numel(), in);
    return Pending();
  }
  call.compare(in);
  call.count(bytes_of(in) * (group.size() - 1));
  return call.start([&](c10d::Backend& backend) {
    at::Tensor input = in;
    return backend._allgather_base(out, input, c10d::AllgatherOptions());
  });
}

void all_gather(at::Tensor& out, const at::Tensor& in, const Group& group, std::string_view site) {
  all_gather_async(out, in, group, site).wait();
}

Pending reduce_scatter_async(at::Tensor& out, const at::Tensor& in, const Group& group, std::string_view site) {
  const Call call("reduce_scatter", site, group);
  call.check_pair(out, in);
  call.check_reducible(in);
  call.check(in.numel() == out.numel() * group.size(), "in has {} elements; it needs {} x {} = {}", in.numel(),
             group.size(), out.numel(), out.numel() * group.size());
  if (call.alone()) {
    copy_flat(out, in);
    return Pending();
  }
  if (call.dropped()) {
    copy_flat(out, flat_part(in, group.rank() * out.numel(), out.numel()));
    return Pending();
  }
  call.compare(in);
  call.count(bytes_of(out) * (group.size() - 1));
  return call.start([&](c10d::Backend& backend) {
    at::Tensor input = in;
    c10d::ReduceScatterOptions options;
    options.reduceOp = c10d::ReduceOp::SUM;
    return backend._reduce_scatter_base(out, input, options);
  });
}

void reduce_scatter(at::Tensor& out, const at::Tensor& in, const Group& group, std::string_view site) {
  reduce_scatter_async(out, in, group, site).wait();
}

Pending all_to_all_async(at::Tensor& out, const at::Tensor& in, const Group& group, std::string_view site,
                         const std::vector<int64_t>& out_splits, const std::vector<int64_t>& in_splits) {
  const Call call("all_to_all", site, group);
  call.check_pair(out, in);
  std::vector<int64_t> to = full_splits(call, out, out_splits, "out");
  std::vector<int64_t> from = full_splits(call, in, in_splits, "in");
  const auto own = static_cast<size_t>(group.rank());
  const int64_t row = std::max(row_numel(in), row_numel(out));
  call.check(out.numel() == out.size(0) * row && in.numel() == in.size(0) * row,
             "rows of out [{}] and in [{}] differ in size", fmt::join(out.sizes().vec(), ", "),
             fmt::join(in.sizes().vec(), ", "));
  call.check(to[own] == from[own], "this rank keeps {} rows of in, but out has room for {}", from[own], to[own]);
  if (call.alone()) {
    copy_flat(out, in);
    return Pending();
  }
  call.check(out.numel() == 0 || !out.is_alias_of(in), "out and in share memory; use two tensors");
  if (call.dropped()) {
    const at::Tensor part = flat_part(in, offset_of(from, group.rank()) * row, from[own] * row);
    keep_own_part(out, offset_of(to, group.rank()) * row, part);
    return Pending();
  }
  call.compare(fmt::format("{} rows of {} elements", c10::toString(in.scalar_type()), row));
  call.compare(from, to);
  call.count((in.size(0) - from[own]) * row * static_cast<int64_t>(in.element_size()));
  return call.start([&](c10d::Backend& backend) {
    at::Tensor input = in;
    return backend.alltoall_base(out, input, to, from, c10d::AllToAllOptions());
  });
}

void all_to_all(at::Tensor& out, const at::Tensor& in, const Group& group, std::string_view site,
                const std::vector<int64_t>& out_splits, const std::vector<int64_t>& in_splits) {
  all_to_all_async(out, in, group, site, out_splits, in_splits).wait();
}

void broadcast(at::Tensor& x, int root, const Group& group, std::string_view site) {
  const Call call("broadcast", site, group);
  call.check_tensor(x, "x");
  call.check(root >= 0 && root < group.size(), "root {} is not a position in the group of {} ranks", root,
             group.size());
  if (call.alone() || call.dropped()) {
    return;
  }
  call.compare(x, fmt::format("root {}", root));
  call.count(group.rank() == root ? bytes_of(x) : 0);
  call.start([&](c10d::Backend& backend) {
        std::vector<at::Tensor> tensors = {x};
        c10d::BroadcastOptions options;
        options.rootRank = root;
        return backend.broadcast(tensors, options);
      })
      .wait();
}

Pending send_async(const at::Tensor& x, int peer, const Group& group, std::string_view site, int tag) {
  const Call call("send", site, group);
  call.check_tensor(x, "x");
  call.check_peer(peer, "receiver");
  if (call.dropped()) {
    return Pending();
  }
  call.count(bytes_of(x));
  return call.start([&](c10d::Backend& backend) {
    std::vector<at::Tensor> tensors = {x};
    return backend.send(tensors, peer, tag);
  });
}

Pending receive_async(at::Tensor& x, int peer, const Group& group, std::string_view site, int tag) {
  const Call call("receive", site, group);
  call.check_tensor(x, "x");
  call.check_peer(peer, "sender");
  if (call.dropped()) {
    const at::NoGradGuard no_grad;
    x.zero_();
    return Pending();
  }
  call.count(0);
  return call.start([&](c10d::Backend& backend) {
    std::vector<at::Tensor> tensors = {x};
    return backend.recv(tensors, peer, tag);
  });
}

void barrier(const Group& group, std::string_view site) {
  const Call call("barrier", site, group);
  if (call.alone() || call.dropped()) {
    return;
  }
  call.compare("");
  call.count(0);
  call.start([&](c10d::Backend& backend) { return backend.barrier(c10d::BarrierOptions()); }).wait();
}

std::vector<std::string> all_gather_strings(const std::string& text, const Group& group, std::string_view site) {
  const Call call("all_gather_strings", site, group);
  const auto n = static_cast<size_t>(group.size());
  std::vector<std::string> result(n);
  if (call.alone() || call.dropped()) {
    result[static_cast<size_t>(group.rank())] = text;
    return result;
  }
  call.compare("");
  call.count(static_cast<int64_t>(text.size()) * (group.size() - 1));
  const auto gather = [&](at::Tensor out, at::Tensor in) {
    call.start([&](c10d::Backend& backend) { return backend._allgather_base(out, in, c10d::AllgatherOptions()); })
        .wait();
    return out;
  };
  at::Tensor length = at::empty({1}, at::kLong);
  *static_cast<int64_t*>(length.data_ptr()) = static_cast<int64_t>(text.size());
  const at::Tensor lengths = gather(at::empty({static_cast<int64_t>(n)}, at::kLong), length);
  const auto* sizes = static_cast<const int64_t*>(lengths.const_data_ptr());
  const int64_t longest = *std::max_element(sizes, sizes + n);
  if (longest == 0) {
    return result;
  }
  at::Tensor padded = at::empty({longest}, at::kByte);
  std::memcpy(padded.data_ptr(), text.data(), text.size());
  std::memset(static_cast<char*>(padded.data_ptr()) + text.size(), 0, static_cast<size_t>(longest) - text.size());
  const at::Tensor all = gather(at::empty({longest * static_cast<int64_t>(n)}, at::kByte), padded);
  for (size_t r = 0; r < n; ++r) {
    const char* begin = static_cast<const char*>(all.const_data_ptr()) + static_cast<int64_t>(r) * longest;
    result[r].assign(begin, static_cast<size_t>(sizes[r]));
  }
  return result;
}

}  // namespace tetra
