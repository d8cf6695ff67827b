#include "parallel/parameter.h"

#include <utility>

#include <ATen/ops/empty.h>

#include "kernels/error.h"
#include "mesh/philox.h"

namespace tetra {

Precision parse_precision(const std::string& name) {
  if (name == "fp64") {
    return {at::kDouble, at::kDouble};
  }
  if (name == "fp32") {
    return {at::kFloat, at::kFloat};
  }
  if (name == "bf16") {
    return {at::kBFloat16, at::kFloat};
  }
  if (name == "fp16") {
    return {at::kHalf, at::kFloat};
  }
  fail("train.precision {} is not known; use fp64, fp32, bf16 or fp16", name);
}

Parameter& ParameterSet::add(std::string name, TpCut cut, Initial initial, TpGradient tp_gradient) {
  require(find(name) == nullptr, "parameter {} is there already", name);
  require(pieces() > 0, "parameter {} belongs to no piece; call begin_piece first", name);
  Slice slice = cut.slice(tp_rank_);
  auto meta = at::empty(slice.local_shape(), at::TensorOptions().dtype(precision_.compute).device(at::kMeta));
  parameters_.push_back(
      {std::move(name), std::move(cut), initial, tp_gradient, {pieces() - 1}, std::move(slice), std::move(meta)});
  return parameters_.back();
}

Parameter* ParameterSet::share(Parameter* parameter) {
  parameter->pieces.push_back(pieces() - 1);
  return parameter;
}

Parameter* ParameterSet::find(const std::string& name) {
  for (Parameter& parameter : parameters_) {
    if (parameter.name == name) {
      return &parameter;
    }
  }
  return nullptr;
}

int64_t ParameterSet::global_numel() const {
  int64_t total = 0;
  for (const Parameter& parameter : parameters_) {
    total += Slice::whole(parameter.cut.global_shape()).local_numel();
  }
  return total;
}

at::Tensor draw_initial(const Parameter& parameter, Range flat, uint64_t seed, at::ScalarType type) {
  auto values = at::empty({flat.size()}, at::TensorOptions().dtype(type));
  switch (parameter.initial.kind) {
    case Initial::Kind::ones:
      values.fill_(1);
      break;
    case Initial::Kind::zeros:
      values.zero_();
      break;
    case Initial::Kind::normal:
      fill_normal(values, parameter.slice, flat, {seed, parameter.name}, parameter.initial.std);
      break;
  }
  return values;
}

}  // namespace tetra
