#include "parallel/tensor/linear.h"

namespace tetra {
namespace {

at::Tensor value_of(const Parameter* parameter) {
  return parameter == nullptr ? at::Tensor() : parameter->value;
}

}  // namespace

std::vector<Varying> column_parallel(const Replicated& x, const std::vector<LinearParameters>& layers,
                                     WeightLayout layout) {
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> biases;
  for (const LinearParameters& layer : layers) {
    weights.push_back(layer.weight->value);
    biases.push_back(value_of(layer.bias));
  }
  std::vector<Varying> outputs;
  for (auto& y : linear(x.tensor, weights, biases, layout)) {
    outputs.emplace_back(y);
  }
  return outputs;
}

Varying column_parallel(const Replicated& x, const LinearParameters& layer, WeightLayout layout) {
  return Varying(linear(x.tensor, layer.weight->value, value_of(layer.bias), layout));
}

Stream row_parallel(const Varying& x, const LinearParameters& layer, const TensorParallel& tp, const std::string& site,
                    WeightLayout layout) {
  const Partial sum(linear(x.tensor, layer.weight->value, {}, layout));
  return leave(sum, value_of(layer.bias), tp, site);
}

}  // namespace tetra
