#pragma once
// A model's parameters: name, global shape, how each is cut, and which pieces of the model use it.

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "parallel/tensor/cut.h"

namespace tetra {

/// Types of a training run. Masters and gradients are kept at least in fp32, whatever the model computes in.
struct Precision {
  at::ScalarType compute = at::kFloat;  // parameters as the model sees them, and activations
  at::ScalarType master = at::kFloat;   // what the optimizer updates; also main gradients and optimizer state
  bool has_masters() const { return compute != master; }
};

/// "fp64", "fp32", "bf16" or "fp16"; anything else is an Error.
Precision parse_precision(const std::string& name);

/// How an element starts when no weights are read.
struct Initial {
  enum class Kind { normal, ones, zeros } kind = Kind::normal;
  double std = 0.02;

  static Initial ones() { return {Kind::ones, 0}; }
  static Initial zeros() { return {Kind::zeros, 0}; }
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
  std::vector<int64_t> pieces;  // of the model that use it, ascending; the first one is its home

  Slice slice;       // this tp rank's part, to be cut further over data-parallel ranks
  at::Tensor value;  // all of `slice` in the compute type, a leaf of autograd. ModelState gives it memory, and may
                     // take it back between uses: reading it then throws
};

/// All parameters of one rank's model, in the model's order. Addresses stay valid as more are added.
class ParameterSet {
 public:
  explicit ParameterSet(Precision precision, int64_t tp_rank, at::Device device = at::kCPU)
      : precision_(precision), tp_rank_(tp_rank), device_(device) {}

  /// What is added from here on belongs to the model's next piece: embedding, a block, head. `weights_in_backward` is
  /// false for a piece whose backward reads no weights (a table lookup).
  void begin_piece(bool weights_in_backward = true) { weights_in_backward_.push_back(weights_in_backward); }

  /// Adds a parameter without memory (on the meta device).
  Parameter& add(std::string name, TpCut cut, Initial initial, TpGradient tp_gradient = TpGradient::complete);
  /// The piece under way uses a parameter of an earlier one too (tied embedding).
  Parameter* share(Parameter* parameter);

  std::deque<Parameter>& all() { return parameters_; }
  const std::deque<Parameter>& all() const { return parameters_; }
  Parameter* find(const std::string& name);

  const Precision& precision() const { return precision_; }
  int64_t tp_rank() const { return tp_rank_; }
  at::Device device() const { return device_; }
  int64_t pieces() const { return static_cast<int64_t>(weights_in_backward_.size()); }
  bool weights_in_backward(int64_t piece) const { return weights_in_backward_.at(static_cast<size_t>(piece)); }
  int64_t global_numel() const;

 private:
  Precision precision_;
  int64_t tp_rank_;
  at::Device device_;
  std::deque<Parameter> parameters_;
  std::vector<bool> weights_in_backward_;  // of each piece
};

/// Elements [flat.begin, flat.end) of this tp rank's part of `parameter`, drawn from (seed, name, global index): equal
/// on every layout. A flat CPU tensor.
at::Tensor draw_initial(const Parameter& parameter, Range flat, uint64_t seed, at::ScalarType type);

}  // namespace tetra
