#pragma once
// A model's parameters: name, global shape, how each is cut, and this rank's part of it.

#include <cstdint>
#include <deque>
#include <string>

#include <ATen/core/Tensor.h>

#include "parallel/tensor/cut.h"

namespace tetra {

/// Types of a training run. Masters and gradients are kept at least in fp32, whatever the model computes in.
struct Precision {
  at::ScalarType compute = at::kFloat;  // parameters as the model sees them, and activations
  at::ScalarType master = at::kFloat;   // what the optimizer updates; also main gradients and optimizer state
  bool has_masters() const { return compute != master; }
};

/// "fp64", "fp32" or "bf16"; anything else is an Error.
Precision parse_precision(const std::string& name);

/// How an element starts when no weights are read.
struct Initial {
  enum class Kind { normal, ones, zeros } kind = Kind::normal;
  double std = 0.02;
};

/// Whether the gradient that backward leaves on each tp rank is the whole one or a part.
enum class TpGradient {
  complete,  // equal on all ranks that hold the element
  partial,   // to be summed over the ranks that hold it: its input or output was cut over tokens or heads
};

struct Parameter {
  std::string name;  // global, as Hugging Face spells it
  TpCut cut;
  Initial initial;
  TpGradient tp_gradient = TpGradient::complete;

  Slice slice;           // this rank's part
  at::Tensor value;      // compute type, a leaf of autograd; on the meta device until filled
  at::Tensor master;     // master type; the same tensor as `value` where the types are equal
  at::Tensor main_grad;  // master type, made by GradientReducer: the sum over the window's micro-batches
};

/// All parameters of one rank's model, in the model's order. Addresses stay valid as more are added.
class ParameterSet {
 public:
  explicit ParameterSet(Precision precision, int64_t tp_rank, at::Device device = at::kCPU)
      : precision_(precision), tp_rank_(tp_rank), device_(device) {}

  /// Adds a parameter without memory (on the meta device).
  Parameter& add(std::string name, TpCut cut, Initial initial, TpGradient tp_gradient = TpGradient::complete);

  /// Gives each parameter its memory and its values: `master_values` returns the part `slice` of tensor `name` in the
  /// master type on the CPU.
  template <typename MasterValues>
  void fill(MasterValues&& master_values) {
    for (Parameter& parameter : parameters_) {
      set_values(parameter, master_values(parameter));
    }
  }

  std::deque<Parameter>& all() { return parameters_; }
  const std::deque<Parameter>& all() const { return parameters_; }
  Parameter* find(const std::string& name);

  const Precision& precision() const { return precision_; }
  int64_t tp_rank() const { return tp_rank_; }
  at::Device device() const { return device_; }
  int64_t global_numel() const;

 private:
  void set_values(Parameter& parameter, at::Tensor values);

  Precision precision_;
  int64_t tp_rank_;
  at::Device device_;
  std::deque<Parameter> parameters_;
};

/// This rank's part of `parameter`, drawn from (seed, name, global index): equal on every layout.
at::Tensor draw_initial(const Parameter& parameter, uint64_t seed, at::ScalarType type);

}  // namespace tetra
