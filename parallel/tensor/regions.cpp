#include "parallel/tensor/regions.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include "mesh/collectives.h"
#include "mesh/group.h"
#include "mesh/slice.h"

namespace tetra {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// What a backward needs to find its group again; groups outlive every graph of their world.
struct Region {
  const Group* group;
  std::string site;
  int64_t tokens = 0;
};

void save(AutogradContext* ctx, const Region& region) {
  ctx->saved_data["group"] = reinterpret_cast<int64_t>(region.group);
  ctx->saved_data["site"] = region.site;
  ctx->saved_data["tokens"] = region.tokens;
}

Region saved(AutogradContext* ctx) {
  return {reinterpret_cast<const Group*>(ctx->saved_data["group"].toInt()), ctx->saved_data["site"].toStringRef(),
          ctx->saved_data["tokens"].toInt()};
}

at::Tensor pad_rows(const at::Tensor& x, int64_t rows) {
  return x.size(0) == rows ? x.contiguous() : at::constant_pad_nd(x, {0, 0, 0, rows - x.size(0)});
}

int64_t rows_per_rank(int64_t tokens, const Group& group) {
  return (tokens + group.size() - 1) / group.size();
}

at::Tensor gather_rows(const at::Tensor& x, const Region& region, const char* direction) {
  auto all = at::empty({x.size(0) * region.group->size(), x.size(1)}, x.options());
  all_gather(all, x.contiguous(), *region.group, region.site + direction);
  return all.narrow(0, 0, region.tokens);
}

at::Tensor scatter_sum_rows(const at::Tensor& x, const Region& region, const char* direction) {
  const int64_t rows = rows_per_rank(region.tokens, *region.group);
  auto part = at::empty({rows, x.size(1)}, x.options());
  reduce_scatter(part, pad_rows(x, rows * region.group->size()), *region.group, region.site + direction);
  return part;
}

at::Tensor sum_over_ranks(at::Tensor x, const Region& region, const char* direction) {
  const bool mine_alone = x.use_count() == 1 && x.storage().use_count() == 1;
  auto sum = !x.is_contiguous() ? x.contiguous() : mine_alone ? x : x.clone();
  all_reduce(sum, *region.group, region.site + direction);
  return sum;
}

// I->R: nothing / all-reduce.
struct EnterInvariant : Function<EnterInvariant> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const Region& region) {
    save(ctx, region);
    return x.view_as(x);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {sum_over_ranks(std::move(grads[0]), saved(ctx), ".backward"), {}};
  }
};

// V->R: all-gather / reduce-scatter.
struct EnterVarying : Function<EnterVarying> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const Region& region) {
    save(ctx, region);
    return gather_rows(x, region, ".forward");
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {scatter_sum_rows(grads[0], saved(ctx), ".backward"), {}};
  }
};

// P->I: all-reduce / nothing. The partial is used nowhere else, so it is reduced in place.
struct LeaveInvariant : Function<LeaveInvariant> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x, const Region& region) {
    auto sum = x.detach();
    all_reduce(sum, *region.group, region.site + ".forward");
    return sum;
  }
  static variable_list backward(AutogradContext*, variable_list grads) { return {grads[0], {}}; }
};

// P->V: reduce-scatter / all-gather.
struct LeaveVarying : Function<LeaveVarying> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const Region& region) {
    save(ctx, region);
    return scatter_sum_rows(x, region, ".forward");
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {gather_rows(grads[0], saved(ctx), ".backward"), {}};
  }
};

}  // namespace

bool TensorParallel::cuts_tokens() const {
  return sequence_parallel && group.size() > 1;
}
int64_t TensorParallel::size() const {
  return group.size();
}
int64_t TensorParallel::rank() const {
  return group.rank();
}

Replicated enter(const Stream& x, const TensorParallel& tp, const std::string& site) {
  if (tp.size() == 1) {
    return Replicated(x.tensor);
  }
  const Region region{&tp.group, site, x.tokens};
  return Replicated(tp.cuts_tokens() ? EnterVarying::apply(x.tensor, region) : EnterInvariant::apply(x.tensor, region));
}

Stream leave(const Partial& x, const TensorParallel& tp, const std::string& site) {
  const int64_t tokens = x.tensor.size(0);
  if (tp.size() == 1) {
    return {x.tensor, tokens};
  }
  const Region region{&tp.group, site, tokens};
  return {tp.cuts_tokens() ? LeaveVarying::apply(x.tensor, region) : LeaveInvariant::apply(x.tensor, region), tokens};
}

Stream leave(const Partial& x, const at::Tensor& bias, const TensorParallel& tp, const std::string& site) {
  Stream y = leave(x, tp, site);
  return bias.defined() ? Stream{y.tensor + bias, y.tokens} : y;
}

at::Tensor gather_last_dim(const Varying& x, int64_t global_size, const TensorParallel& tp, const std::string& site) {
  if (tp.size() == 1) {
    return x.tensor;
  }
  const int64_t rows = x.tensor.size(0);
  const int64_t widest = even_range(global_size, tp.size(), 0).size();
  auto mine = at::constant_pad_nd(x.tensor.detach(), {0, widest - x.tensor.size(1)}).contiguous();
  auto all = at::empty({tp.size(), rows, widest}, mine.options());
  all_gather(all, mine, tp.group, site);
  std::vector<at::Tensor> parts;
  for (int64_t rank = 0; rank < tp.size(); ++rank) {
    parts.push_back(all[rank].narrow(1, 0, even_range(global_size, tp.size(), rank).size()));
  }
  return at::cat(parts, 1);
}

Stream operator+(const Stream& a, const Stream& b) {
  return {a.tensor + b.tensor, a.tokens};
}

TokenRange stream_tokens(int64_t tokens, const TensorParallel& tp) {
  if (!tp.cuts_tokens()) {
    return {0, tokens, tokens};
  }
  const int64_t rows = rows_per_rank(tokens, tp.group);
  const int64_t begin = std::min(tokens, rows * tp.rank());
  return {begin, std::min(tokens, begin + rows), rows};
}

}  // namespace tetra
