#pragma once
// Where training sequences come from, addressed by step and row of the global batch, so that no layout changes them.

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "mesh/slice.h"
#include "train/config.h"

namespace tetra {

/// Sequences and their labels, both [rows, seq_len] int64. Labels are not yet shifted; -100 is not counted.
struct Rows {
  at::Tensor ids;
  at::Tensor labels;
};

class SampleSource {
 public:
  virtual ~SampleSource() = default;
  /// Rows [rows.begin, rows.end) of the global batch of `step` (from 0). Thread safe. Throws Error when an id or label
  /// is outside the vocabulary, naming file, step, row and position.
  virtual Rows read(int64_t step, Range rows) const = 0;
  /// What the order of samples depends on, beside seed and batch size: a run is resumed on the same alone.
  virtual std::string identity() const = 0;
};

/// `data.tokens` (with `data.labels`), or `data.text` shuffled by `seed`. Checks that the files are there and long
/// enough for the whole run.
std::unique_ptr<SampleSource> open_samples(const Config& config, int64_t vocab_size);

/// Labels[s] = what follows ids[s]: the whole sequence is shifted before anything cuts it.
at::Tensor shift_labels(const at::Tensor& labels);

}  // namespace tetra
