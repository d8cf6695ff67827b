#include "parallel/data/unit_gatherer.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

namespace tetra {
namespace {

// Identity whose backward tells the gatherer that a piece's backward is about to run.
class Announce : public torch::autograd::Function<Announce> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, int64_t gatherer,
                            int64_t piece) {
    ctx->saved_data["gatherer"] = gatherer;
    ctx->saved_data["piece"] = piece;
    return x.view_as(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    auto* gatherer = reinterpret_cast<UnitGatherer*>(ctx->saved_data["gatherer"].toInt());
    gatherer->before_backward(ctx->saved_data["piece"].toInt());
    return {grads[0], {}, {}};
  }
};

}  // namespace

UnitGatherer::UnitGatherer(ModelState& state) : state_(state), pending_(state.units().size()) {
  units_of_.resize(static_cast<size_t>(state.parameters().pieces()));
  for (size_t u = 0; u < state.units().size(); ++u) {
    for (const int64_t piece : state.units()[u].unit.pieces) {
      units_of_[static_cast<size_t>(piece)].push_back(u);
    }
  }
}

void UnitGatherer::fetch(int64_t piece) {
  for (const size_t unit : units_of_[static_cast<size_t>(piece)]) {
    if (!state_.gathered(unit)) {
      pending_[unit] = state_.gather_async(unit);
    }
  }
}

void UnitGatherer::await(int64_t piece) {
  for (const size_t unit : units_of_[static_cast<size_t>(piece)]) {
    pending_[unit].wait();
  }
}

// Towards the model's end in forward, towards its beginning in backward, as far as enough units are under way.
void UnitGatherer::fetch_ahead(int64_t piece, int64_t direction) {
  const auto pieces = static_cast<int64_t>(units_of_.size());
  const bool backward = direction < 0;
  int64_t fetched = 0;
  for (int64_t next = piece + direction; next >= 0 && next < pieces && fetched < state_.options().prefetch_units;
       next += direction) {
    if (backward && !state_.parameters().weights_in_backward(next)) {
      continue;
    }
    fetch(next);
    fetched += static_cast<int64_t>(units_of_[static_cast<size_t>(next)].size());
  }
}

void UnitGatherer::before_forward(int64_t piece) {
  if (!state_.transient()) {
    return;
  }
  fetch(piece);
  fetch_ahead(piece, +1);
  await(piece);
}

at::Tensor UnitGatherer::after_forward(int64_t piece, const at::Tensor& output) {
  if (!state_.transient()) {
    return output;
  }
  const bool with_backward = at::GradMode::is_enabled();
  const bool last = piece + 1 == static_cast<int64_t>(units_of_.size());
  // Backward starts with the last piece: its values are wanted again at once.
  if (!with_backward || (state_.options().reshard_after_forward && !last)) {
    for (const size_t unit : units_of_[static_cast<size_t>(piece)]) {
      const auto& pieces = state_.units()[unit].unit.pieces;
      const bool next_too = std::find(pieces.begin(), pieces.end(), piece + 1) != pieces.end();
      if (!next_too) {
        state_.release_values(unit);
      }
    }
  }
  if (!with_backward || !output.requires_grad()) {
    return output;
  }
  return Announce::apply(output, reinterpret_cast<int64_t>(this), piece);
}

void UnitGatherer::before_backward(int64_t piece) {
  if (state_.parameters().weights_in_backward(piece)) {
    fetch(piece);
    fetch_ahead(piece, -1);
    await(piece);
  }
}

void UnitGatherer::unit_done(size_t unit) {
  if (state_.transient()) {
    pending_[unit].wait();
    state_.release_values(unit);
  }
}

}  // namespace tetra
