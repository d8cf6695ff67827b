#pragma once
// Reading and writing of safetensors files and Hugging Face weight folders.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/slice.h"

namespace tetra {

struct TensorInfo {
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  std::string file;  // path of the file that holds it
};

/// The tensors of a folder (model.safetensors, or model.safetensors.index.json and its shards) or of one file.
/// Memory-mapped: a rank touches just the pages of its slices. Every header is checked when it is opened (sizes,
/// offsets, overlaps, duplicates, index against shards, "../" in file names); an Error names file and tensor.
class WeightReader {
 public:
  static WeightReader open(const std::string& folder_or_file);
  WeightReader(WeightReader&&) noexcept;
  WeightReader& operator=(WeightReader&&) noexcept;
  ~WeightReader();

  const std::map<std::string, TensorInfo>& tensors() const;
  bool contains(const std::string& name) const;

  /// A new contiguous CPU tensor with the part that `slice` names, converted to `dtype`. Throws Error when the name is
  /// missing or the stored shape is not slice.global_shape, naming both shapes and the file.
  at::Tensor read(const std::string& name, const Slice& slice, at::ScalarType dtype) const;

 private:
  struct State;
  explicit WeightReader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Writes one safetensors file, tensor by tensor, without holding them all: declare first, then write each once, in any
/// order, in parts of dim 0 if wanted. Metadata {"format": "pt"} is always there. Written to a temporary name, flushed,
/// renamed by finish(); a writer that dies unfinished removes its temporary file.
class SafetensorsWriter {
 public:
  SafetensorsWriter(std::string path, std::map<std::string, std::pair<at::ScalarType, std::vector<int64_t>>> tensors);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// `tensor` contiguous CPU, of the declared type and shape.
  void write(const std::string& name, const at::Tensor& tensor);
  /// Throws Error when a declared tensor was not written.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// How a folder's tensors are divided into files: name -> file name, plus the index's text where there is more than one
/// file. Files are filled in the order given, up to max_shard_bytes each (a larger tensor gets its own file).
struct ShardPlan {
  std::vector<std::pair<std::string, std::vector<std::string>>> files;  // file name -> tensor names
  std::string index_json;                                               // empty for a single file
};
ShardPlan plan_shards(const std::vector<std::pair<std::string, std::pair<at::ScalarType, std::vector<int64_t>>>>& tensors,
                      int64_t max_shard_bytes);

/// Writes `text` to `path` through a temporary name, flushed, then renamed.
void write_file_atomically(const std::string& path, const std::string& text);

}  // namespace tetra
