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
  fail("train.precision {} is not there yet; use fp64, fp32 or bf16", name);
}

Parameter& ParameterSet::add(std::string name, TpCut cut, Initial initial, TpGradient tp_gradient) {
  require(find(name) == nullptr, "parameter {} is there already", name);
  Slice slice = cut.slice(tp_rank_);
  auto meta = at::empty(slice.local_shape(), at::TensorOptions().dtype(precision_.compute).device(at::kMeta));
  parameters_.push_back({std::move(name), std::move(cut), initial, tp_gradient, std::move(slice), meta, meta, {}});
  return parameters_.back();
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
    int64_t numel = 1;
    for (const int64_t size : parameter.cut.global_shape()) {
      numel *= size;
    }
    total += numel;
  }
  return total;
}

void ParameterSet::set_values(Parameter& parameter, at::Tensor values) {
  require(values.sizes().vec() == parameter.slice.local_shape(), "{}: values of shape {} for a part of shape {}",
          parameter.name, values.sizes().vec(), parameter.slice.local_shape());
  parameter.master = values.to(device_, precision_.master);
  parameter.value = precision_.has_masters() ? parameter.master.to(precision_.compute) : parameter.master.detach();
  parameter.value.set_requires_grad(true);
}

at::Tensor draw_initial(const Parameter& parameter, uint64_t seed, at::ScalarType type) {
  auto values = at::empty(parameter.slice.local_shape(), at::TensorOptions().dtype(type));
  switch (parameter.initial.kind) {
    case Initial::Kind::ones:
      values.fill_(1);
      break;
    case Initial::Kind::zeros:
      values.zero_();
      break;
    case Initial::Kind::normal:
      fill_normal(values, parameter.slice, {seed, parameter.name}, parameter.initial.std);
      break;
  }
  return values;
}

}  // namespace tetra
